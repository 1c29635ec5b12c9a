"""Jobs and outcomes arrive unchanged on their way to a carrier and back."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue.contrib.celery import wire
from django_skipqueue.values.outcomes import Outcome, error_entry
from django_skipqueue.values.records import LEFT_OUT, Attempt, ClaimedJob

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
IDS = st.integers(1, 2**63 - 1)
TIMES = st.floats(-wire.LATEST_TIME, wire.LATEST_TIME)
SECONDS = st.floats(0, 1e9)

JOBS = st.builds(
    ClaimedJob,
    id=IDS,
    lease=IDS,
    task=TEXTS,
    queue_name=TEXTS,
    args=TEXTS,
    kwargs=TEXTS,
    attempt=st.integers(-(2**15), 2**15 - 1),
    max_attempts=st.integers(-(2**15), 2**15 - 1),
    priority=st.integers(-100, 100),
    run_after=TIMES,
    locked_at=TIMES,
    metadata=TEXTS,
    timeout=st.none() | st.floats(0, allow_infinity=False),
    unknown_since=st.none() | TIMES,
    holds_permit=st.booleans(),
    claim_seconds=SECONDS,
    claimed_at=st.none() | TIMES,
)
ERRORS = st.builds(
    error_entry,
    st.builds(ValueError, st.text(st.characters(exclude_categories=()))),  # lone surrogates, and NUL too
    attempt=st.integers(1, 2**15 - 1),
    worker=TEXTS,
    duration_ms=st.floats(0, 1e12),
    wait_ms=st.none() | st.floats(-1e12, 1e12),
)
OUTCOMES = st.builds(
    Outcome,
    status=st.sampled_from(["completed", "scheduled", "failed", "discarded"]),
    delay=SECONDS,
    refund=st.integers(0, 1),
    result=st.none() | TEXTS,
    last_error=st.none() | TEXTS,
    error=st.none() | ERRORS,
    is_unknown=st.booleans(),
    is_held=st.booleans(),
    notes=st.none() | TEXTS,
    exception=st.none() | st.just(ValueError("stays here")),
)
ATTEMPTS = st.builds(
    Attempt,
    job=JOBS,
    outcome=OUTCOMES,
    started=st.floats(0, 1e6),
    ended=st.floats(1e6, 1e7),
    worker=TEXTS,
    is_written=st.booleans(),
    database=TEXTS,
)


def encoded_and_decoded(payload: list[Any]) -> Any:
    return wire.decode(wire.encode(payload))


@given(JOBS, TEXTS)
def test_a_job_arrives_as_it_was_sent(job: ClaimedJob, alias: str) -> None:
    arrived, arrived_alias = wire.job_from_wire(encoded_and_decoded(wire.job_to_wire(job, alias)))
    assert arrived == job._replace(is_suspect=None, permit_key=None, claimed_at=None)
    assert arrived_alias == alias


@given(ATTEMPTS, st.floats(0, 1e6))
def test_an_outcome_arrives_as_it_was_sent(attempt: Attempt, now: float) -> None:
    arrived = wire.attempt_from_wire(encoded_and_decoded(wire.attempt_to_wire(attempt)), now=now)
    assert arrived.job == attempt.job._replace(is_suspect=None, permit_key=None, claimed_at=None)
    assert arrived.outcome == attempt.outcome
    assert arrived.outcome.exception is None
    assert arrived.ended == now
    assert math.isclose(arrived.duration_ms, attempt.duration_ms, rel_tol=1e-6)
    assert arrived[4:] == attempt[4:]  # the worker, `is_written` and the database


def test_large_arguments_do_not_come_back_with_the_outcome() -> None:
    for size, comes_back in ((5_000, True), (5_001, False)):
        job = JOB._replace(args="x" * size, kwargs="y" * 5_000)
        payload = wire.attempt_to_wire(Attempt(job, Outcome("completed"), started=0.0, ended=1.0, worker="w"))
        arrived = wire.attempt_from_wire(encoded_and_decoded(payload), now=2.0)
        assert arrived.job == (job if comes_back else job._replace(args=LEFT_OUT, kwargs=LEFT_OUT))


@given(st.lists(ATTEMPTS, min_size=1, max_size=4), TEXTS)
def test_outcomes_share_a_message(attempts: list[Attempt], home: str) -> None:
    encoded = [wire.encode_outcome(attempt, home) for attempt in attempts]
    parts = wire.split_outcomes(wire.decode(wire.join_outcomes(encoded)))
    assert [ref for ref, _ in parts] == [attempt.job.ref for attempt in attempts]
    arrived = [wire.attempt_from_wire(payload, now=0.0).outcome for _, payload in parts]
    assert arrived == [attempt.outcome for attempt in attempts]


@given(ATTEMPTS)
def test_the_size_of_an_outcome_is_the_size_of_its_message(attempt: Attempt) -> None:
    encoded = wire.encode_outcome(attempt, "default")
    assert encoded.size == len(wire.join_outcomes([encoded]))


def test_a_payload_that_is_no_list_of_outcomes_raises_unknown_format(subtests: pytest.Subtests) -> None:
    cases: list[object] = [None, 4, {}, "[]", [], [1, "default"], [["id"]], [["id", [], 3]]]
    for payload in cases:
        with subtests.test(payload=payload), pytest.raises(wire.UnknownFormat):
            wire.split_outcomes(payload)


@given(IDS, IDS, st.text(st.characters(categories=["L", "Nd"], include_characters="-_"), min_size=1))
def test_the_id_of_a_message_has_the_job_and_its_lease(job_id: int, lease: int, alias: str) -> None:
    assert wire.lease_ref_of(wire.message_id(alias, (job_id, lease))) == (job_id, lease)


def test_ids_of_foreign_messages_name_no_lease(subtests: pytest.Subtests) -> None:
    digits = f"skipqueue-default-{'9' * 5_000}-1"
    for foreign_id in (None, 4, "", "skipqueue-default-1", "celery-default-1-1", "skipqueue-x-1-y", digits):
        with subtests.test(foreign_id=foreign_id):
            assert wire.lease_ref_of(foreign_id) is None


JOB = ClaimedJob(
    id=1, lease=2, task="shop.send", queue_name="default", args="[]", kwargs="{}",
    attempt=1, max_attempts=3, priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
)  # fmt: skip
COMPLETED_ATTEMPT = Attempt(JOB, Outcome("completed"), started=0.0, ended=1.0, worker="w")

ODD_NUMBERS = (math.nan, math.inf, -math.inf, 10**400, -(10**400))

ERROR = error_entry(ValueError("no"), attempt=1, worker="w", duration_ms=1.0)
ODD_ERRORS: list[object] = [
    {},
    *({name: value for name, value in ERROR.items() if name != missing} for missing in ("exception", "message")),
    ERROR | {"traceback": None},
    ERROR | {"message": ["no"]},
    ERROR | {"exception": ["ValueError"]},
    ERROR | {"exception": "x" * 1_000},
    ERROR | {"place": {}},
    ERROR | {"line": "3"},
    ERROR | {"attempt": 10**400},
    ERROR | {"duration_ms": math.nan},
    ERROR | {"message": "\ud800"},
    ERROR | {"more": 1},
]


def test_the_error_about_another_format_says_which_side_to_update() -> None:
    newer = [wire.WIRE_FORMAT + 1, *wire.job_to_wire(JOB, "default")[1:]]
    with pytest.raises(wire.UnknownFormat, match=r"format 2.* Update this side"):
        wire.job_from_wire(newer)
    older = [wire.WIRE_FORMAT - 1, *wire.job_to_wire(JOB, "default")[1:]]
    with pytest.raises(wire.UnknownFormat, match=r"format 0.* Update the sender"):
        wire.job_from_wire(older)


def test_a_payload_that_is_no_job_raises_unknown_format(subtests: pytest.Subtests) -> None:
    cases: list[object] = [None, {}, [], ["x"], [wire.WIRE_FORMAT], [wire.WIRE_FORMAT, "default", 1]]
    for payload in cases:
        with subtests.test(payload=payload), pytest.raises(wire.UnknownFormat):
            wire.job_from_wire(payload)


def test_a_payload_that_is_no_outcome_raises_unknown_format(subtests: pytest.Subtests) -> None:
    # Each case: the index of a field of the payload, and a value that this field cannot have.
    cases: list[tuple[int, object]] = [
        (0, None),
        (1, 1),
        (2, [1]),
        (3, ["completed"]),
        (4, None),
        (5, "long"),
        (6, 1),
        (2, None),
        (3, None),
    ]
    for field, value in cases:
        with subtests.test(field=field, value=value):
            payload = wire.attempt_to_wire(COMPLETED_ATTEMPT)
            payload[field] = value
            with pytest.raises(wire.UnknownFormat):
                wire.attempt_from_wire(payload, now=0.0)


@pytest.mark.parametrize(
    "body",
    [b"\x80\x04K", b"\xff", b"[" * 100_000, b"[NaN]", b"[-Infinity]", b"9" * 5_000],
    ids=["pickle", "bytes", "deep", "NaN", "infinity", "digits"],
)
def test_a_body_that_is_not_json_raises_unknown_format(body: bytes) -> None:
    with pytest.raises(wire.UnknownFormat, match="not JSON"):
        wire.decode(body)


def test_a_job_with_an_invalid_field_raises_unknown_format(subtests: pytest.Subtests) -> None:
    # Each case: the index of a field of the job, and a value that this field cannot have.
    cases: list[tuple[int, object]] = [
        *((field, [1]) for field in range(12)),
        (0, True),
        (0, "1"),
        (0, 2**63),
        (0, -1),
        (1, -1),
        (2, "x" * 1_001),
        (3, "\ud800"),
        (5, "\0"),
        (6, 2**31),
        (8, 101),
        (9, None),
        *((10, number) for number in ODD_NUMBERS),
        (12, "60"),
        (12, -1),
        (13, 10**400),
        (15, math.inf),
    ]
    for field, value in cases:
        with subtests.test(field=field, value=value):
            payload = encoded_and_decoded(wire.attempt_to_wire(COMPLETED_ATTEMPT))
            payload[2][field] = value  # a field of the job
            with pytest.raises(wire.UnknownFormat):
                wire.attempt_from_wire(payload, now=0.0)
            with pytest.raises(wire.UnknownFormat):
                wire.job_from_wire([wire.WIRE_FORMAT, "default", *payload[2]])


def test_an_outcome_with_an_invalid_field_raises_unknown_format(subtests: pytest.Subtests) -> None:
    # Each case: the index of a field of the outcome, and a value that this field cannot have.
    cases: list[tuple[int, object]] = [
        *((field, [1]) for field in range(8)),
        (0, "running"),
        (1, None),
        *((1, number) for number in (*ODD_NUMBERS, -1, 1e11)),
        (2, "1"),
        (2, 2),
        (2, -1),
        *((field, text) for field in (3, 4, 7) for text in ("\ud800", "\0")),
        (5, "ValueError"),
        *((5, error) for error in ODD_ERRORS),
        (6, None),
    ]
    for field, value in cases:
        with subtests.test(field=field, value=value):
            payload = encoded_and_decoded(wire.attempt_to_wire(COMPLETED_ATTEMPT))
            payload[3][field] = value  # a field of the outcome
            with pytest.raises(wire.UnknownFormat):
                wire.attempt_from_wire(payload, now=0.0)


def test_an_impossible_duration_raises(subtests: pytest.Subtests) -> None:
    cases: list[float] = [*ODD_NUMBERS, 1e300, -1.0, True]
    for duration in cases:
        with subtests.test(duration=duration):
            payload = wire.attempt_to_wire(COMPLETED_ATTEMPT)
            payload[5] = duration  # the sixth field of an outcome
            with pytest.raises(wire.UnknownFormat):
                wire.attempt_from_wire(payload, now=0.0)


@pytest.mark.parametrize("id", [f"skipqueue-default-{2**63}-1", f"skipqueue-default-1-{2**63}"])
def test_an_id_with_a_number_too_large_for_postgresql_names_no_lease(id: str) -> None:
    assert wire.lease_ref_of(id) is None
