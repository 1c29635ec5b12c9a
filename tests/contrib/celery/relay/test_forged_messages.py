"""Forged messages do not end a relay, and the relay still writes the genuine outcomes that come after them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_skipqueue.contrib.celery import wire
from django_skipqueue.contrib.celery.carrier import Taken, carrier_id
from django_skipqueue.models import Job
from django_skipqueue.values.outcomes import COMPLETED, Outcome, error_entry
from django_skipqueue.values.records import Attempt, ClaimedJob

from ....app.rows import lease_of, make_job
from ....app.waiting import wait_until
from .fake_carrier import FakeCarrier
from .relays import RelayThread
from .test_relay import StartRelay, carrier, carrier_settings, start_relay  # noqa: F401 (fixtures)
from .test_wire import JOB

pytestmark = pytest.mark.django_db(transaction=True)

CARRIER = carrier_id("celery")

FEW_EXAMPLES = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def carried_job() -> ClaimedJob:
    """Make a job that the carrier holds, and return the job as the carrier has it."""
    id, lease = lease_of(make_job("running", queue_name="carried", locked_by=CARRIER))
    return JOB._replace(id=id, lease=lease, task="tests.app.jobs.noop", queue_name="carried")


def make_outcome(job: ClaimedJob, outcome: Outcome = COMPLETED) -> Attempt:
    return Attempt(job, outcome, started=0.0, ended=0.1, worker="celery@here")


ERROR = error_entry(ValueError("no"), attempt=1, worker="celery@here", duration_ms=1.0)
FAILED = Outcome("failed", result="1", last_error="ValueError: no", error=ERROR, notes="{}")


def message_with(payload: object, id: str = "") -> bytes:
    return json.dumps([[id, payload]]).encode()


class Forger:
    """Delivers forged messages to a relay, and then a genuine outcome, which the relay must write all the same."""

    def __init__(self, carrier: FakeCarrier, relay: RelayThread) -> None:  # noqa: F811
        self.carrier, self.relay = carrier, relay

    def deliver_and_check_relay(self, *bodies: bytes, id: object = None) -> None:
        genuine = carried_job()
        for body in bodies:
            self.carrier.deliver(body, id=id)
            self.carrier.deliver_back(body, id=id)
        self.carrier.finish(genuine)
        wait_until(
            lambda: not self.relay.is_alive or not self.carrier.unacknowledged,
            "the relay has acknowledged all messages",
        )
        assert self.relay.is_alive
        assert Job.objects.get(pk=genuine.id).status == "completed"


@pytest.fixture
def forger(carrier: FakeCarrier, start_relay: StartRelay) -> Iterator[Forger]:  # noqa: F811
    forger_of_test = Forger(carrier, start_relay())
    wait_until(lambda: forger_of_test.relay.relay.connection.is_open)
    yield forger_of_test
    assert forger_of_test.relay.is_alive


def with_value_at(payload: list[Any], path: tuple[int | str, ...], value: object) -> list[Any]:
    """Set the value at this path (indexes and keys) of a nested payload, and return the payload."""
    *parents, last = path
    parent: Any = payload
    for key in parents:
        parent = parent[key]
    parent[last] = value
    return payload


# Paths in the payload of an outcome: its element 2 is the job, and its element 3 is the outcome.
JOB_ID, LEASE, TASK, RUN_AFTER, LOCKED_AT, METADATA = ((2, field) for field in (0, 1, 2, 9, 10, 11))
STATUS, DELAY, REFUND, RESULT, LAST_ERROR, WHOLE_ERROR, NOTES = ((3, field) for field in (0, 1, 2, 3, 4, 5, 7))
ODD_NUMBERS = (math.nan, math.inf, -math.inf, 10**400, -1, 1e300, -1e300)
# Each case: the path of a field in the payload of an outcome, and a value that the field cannot have.
CHANGED_FIELDS: list[tuple[tuple[int | str, ...], Any]] = [
    (JOB_ID, 10**400),
    (JOB_ID, 2**63),
    (LEASE, 10**400),
    (TASK, "x" * 5_000_000),
    *((path, number) for path in (RUN_AFTER, LOCKED_AT, DELAY, REFUND, (5,)) for number in ODD_NUMBERS),
    *((path, text) for path in (TASK, RESULT, LAST_ERROR, NOTES, METADATA, (1,), (4,)) for text in ("\ud800", "\0")),
    *((path, "no JSON") for path in (RESULT, NOTES, METADATA)),
    (WHOLE_ERROR, {}),
    (WHOLE_ERROR, {"message": "no"}),
    (WHOLE_ERROR, {"message": "no", "traceback": ""}),
    ((*WHOLE_ERROR, "message"), 4),
    ((*WHOLE_ERROR, "exception"), ["ValueError"]),
    ((*WHOLE_ERROR, "place"), {}),
    ((*WHOLE_ERROR, "line"), 10**400),
    ((*WHOLE_ERROR, "more"), [[]]),
    ((6,), True),
    (STATUS, "running"),
    ((0,), 99),
]


def test_invalid_values_in_a_message_do_not_end_the_relay(forger: Forger, subtests: pytest.Subtests) -> None:
    for path, value in CHANGED_FIELDS:
        with subtests.test(place=path, value=str(value)[:20]):
            job = carried_job()
            payload = wire.attempt_to_wire(make_outcome(job, FAILED))
            forger.deliver_and_check_relay(
                message_with(with_value_at(payload, path, value), wire.message_id("default", job.ref))
            )


def test_a_message_id_with_too_many_digits_does_not_end_the_relay(forger: Forger) -> None:
    id = f"skipqueue-default-{'9' * 5_000}-1"
    forger.deliver_and_check_relay(message_with(wire.attempt_to_wire(make_outcome(carried_job())), id), b"?", id=id)


def test_unreadable_messages_are_logged_and_counted(forger: Forger, caplog: pytest.LogCaptureFixture) -> None:
    forger.deliver_and_check_relay(b"?", id="of a stranger")
    forger.deliver_and_check_relay(message_with([99, "of the future"]), id="of another")
    warnings = [line for line in caplog.messages if line.startswith("message unreadable")]
    assert 'reason="of a stranger: The message is not JSON' in warnings[0]
    assert "carrier=celery" in warnings[0]
    assert " total=4 " in warnings[-1]


def test_an_unreadable_outcome_fails_only_its_own_job(forger: Forger) -> None:
    unreadable_job, readable_job = carried_job(), carried_job()
    encoded = [wire.encode_outcome(make_outcome(job), "default") for job in (unreadable_job, readable_job)]
    forger.deliver_and_check_relay(wire.join_outcomes([encoded[0]._replace(body=b"[99]"), encoded[1]]))
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert (statuses[unreadable_job.id], statuses[readable_job.id]) == ("failed", "completed")


TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from([10**400, -(10**400)]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)
BODIES = (
    st.binary(max_size=50)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.lists(st.tuples(TEXTS, JSON), max_size=3).map(lambda parts: json.dumps(parts).encode())
)
IDS = st.none() | st.integers() | TEXTS | st.from_regex(r"\Askipqueue-x-[0-9]{1,30}-[0-9]{1,30}\Z")
# Changes of an outcome: the path of a field, and any value of JSON.
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            [(index,) for index in range(7)]
            + [(2, index) for index in range(16)]
            + [(3, index) for index in range(8)]
            + [(3, 5, name) for name in (*ERROR, "more")]
        ),
        JSON,
    ),
    min_size=1,
    max_size=2,
)


@given(BODIES, IDS, JSON)
@settings(max_examples=300)
def test_messages_with_any_content_are_read_without_an_exception(body: bytes, id: object, headers: object) -> None:
    taken = Taken()
    assert wire.add_outcomes(taken, 1, body, id, now=0.0) == len(taken.outcomes) + len(taken.jobs)
    assert isinstance(wire.returned_job(1, body, id, {"x-death": headers}).reason, str)


@given(bodies=st.lists(BODIES, max_size=5), id=IDS)
@FEW_EXAMPLES
def test_arbitrary_messages_do_no_harm(forger: Forger, bodies: list[bytes], id: object) -> None:
    forger.deliver_and_check_relay(*bodies, id=id)


@given(changes=st.lists(CHANGES, min_size=1, max_size=5))
@FEW_EXAMPLES
def test_messages_that_are_almost_right_do_no_harm(forger: Forger, changes: list[Any]) -> None:
    """The messages name jobs that the carrier holds, with valid leases, so the relay writes what it can read."""
    bodies = []
    for change in changes:
        job = carried_job()
        payload = wire.attempt_to_wire(make_outcome(job, FAILED))
        # The longest paths come first, because a change at a shorter path may replace what a longer path leads to.
        for path, value in sorted(change, key=lambda path_and_value: -len(path_and_value[0])):
            payload = with_value_at(payload, path, value)
        bodies.append(message_with(payload, wire.message_id("default", job.ref)))
    forger.deliver_and_check_relay(*bodies)
