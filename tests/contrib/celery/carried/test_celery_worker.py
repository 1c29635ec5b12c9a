"""Jobs in real Celery workers, of a prefork pool and of threads."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kombu.connection import Connection

from django_skipqueue.contrib.celery import rabbitmq as topology
from django_skipqueue.contrib.celery import wire
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import ClaimedJob
from scripts.embedded_rabbitmq import RabbitMQ

from ....app.jobs import add
from ....app.models import Ledger
from ....app.waiting import wait_until
from ....app.worker_jobs import atomic_write
from ....harness.processes import ManagePy, is_alive
from ..relay.consumer import FakeCeleryWorker
from .celery_worker import RelayDouble, make_claimed_job, start_worker

pytestmark = pytest.mark.slow  # each test starts a worker of Celery

POOLS = {"prefork": ("--pool", "prefork", "-c", "2"), "threads": ("--pool", "threads", "-c", "4")}

Start = Callable[..., ManagePy]


@pytest.fixture
def relay(broker_url: str) -> Iterator[RelayDouble]:
    relay_double = RelayDouble(broker_url)
    with closing(relay_double.carrier):
        yield relay_double


@pytest.fixture
def start(manage: Callable[..., ManagePy], broker_url: str) -> Start:
    return lambda *arguments, **celery: start_worker(manage, broker_url, *arguments, **celery)


@pytest.fixture(params=list(POOLS))
def pool(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return POOLS[request.param]


def stop_cleanly(process: ManagePy) -> None:
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log


def test_every_kind_of_task_has_the_same_outcome_in_celery_as_in_a_worker(
    start: Start, relay: RelayDouble, pool: tuple[str, ...]
) -> None:
    process = start(*pool)
    relay.publish(
        make_claimed_job(1, "jobs.add", 2, 3),
        make_claimed_job(2, "jobs.aadd", 2, 3),
        make_claimed_job(3, "jobs.fail", "no luck"),
        make_claimed_job(4, "jobs.ask_for_retry", 5),
        make_claimed_job(5, "jobs.snooze", 60),
        make_claimed_job(6, "jobs.discard", "enough"),
        make_claimed_job(7, "jobs.slow", 30, timeout=0.2),
        make_claimed_job(8, "jobs.aslow", 30, timeout=0.2),
        make_claimed_job(9, "nowhere.task"),
        make_claimed_job(10, "extra.jobs.who"),
        make_claimed_job(11, "extra.jobs.note"),
        make_claimed_job(12, "extra.jobs.leak", "hush-hush-hush"),
        make_claimed_job(13, "jobs.return_unstorable", "nan"),
    )
    attempts = relay.outcomes(13)
    outcomes = {attempt.job.task.removeprefix("tests.app."): attempt.outcome for attempt in attempts.values()}
    assert outcomes["jobs.add"] == outcomes["jobs.aadd"] == Outcome("completed", result="5")
    assert (outcomes["jobs.fail"].status, outcomes["jobs.fail"].delay) == ("scheduled", 0)
    assert outcomes["jobs.fail"].error is not None
    assert "raise ValueError(message)" in outcomes["jobs.fail"].error["traceback"]
    retry, snooze = outcomes["jobs.ask_for_retry"], outcomes["jobs.snooze"]
    assert (retry.status, retry.delay, retry.refund) == ("scheduled", 5, 0)
    assert (snooze.status, snooze.delay, snooze.refund) == ("scheduled", 60, 1)
    assert outcomes["jobs.discard"].status == "discarded"
    for task in ("jobs.slow", "jobs.aslow"):
        assert outcomes[task].last_error == "JobTimeout: timed out after 0.2 s"
    assert outcomes["nowhere.task"].is_unknown
    assert '"celery@' in str(outcomes["extra.jobs.who"].result)
    assert '"value": 0.5' in str(outcomes["extra.jobs.note"].notes)
    assert "a line" in str(outcomes["extra.jobs.note"].notes)
    assert outcomes["extra.jobs.leak"].error is not None
    assert "hush-hush" not in str(outcomes["extra.jobs.leak"].error)
    assert "UnstorableResult" in str(outcomes["jobs.return_unstorable"].last_error)
    assert all(attempt.worker.startswith("celery@") and not attempt.is_written for attempt in attempts.values())
    assert attempts[7].duration_ms >= 200, "the job ran until its timeout of 0.2 s"
    stop_cleanly(process)


def test_an_atomic_task_commits_its_writes_only_with_a_valid_lease(start: Start, relay: RelayDouble) -> None:
    start(*POOLS["prefork"])
    atomic_write.using(queue_name="carried").defer("first")
    atomic_write.using(queue_name="carried").defer("lost")
    add.using(queue_name="carried").defer(1)
    valid, expired, not_atomic = Store("default").claim(queue_names=["carried"], limit=3, worker_id="r:0123456789ab")
    relay.publish(valid, expired._replace(lease=expired.lease + 1), not_atomic)
    attempts = relay.outcomes(3)
    assert attempts[valid.id].is_written
    assert list(Ledger.objects.values_list("entry", flat=True)) == ["first"]
    assert Job.objects.get(pk=valid.id).status == "completed"
    assert Job.objects.get(pk=expired.id).status == "running"
    assert not attempts[expired.id].is_written
    assert attempts[expired.id].outcome.status != "completed"
    assert Job.objects.get(pk=not_atomic.id).status == "running"  # the relay writes this outcome
    store = Store("default")
    assert store.settle([attempts[not_atomic.id].settlement]) == {not_atomic.id}


def test_a_job_whose_celery_process_dies_is_returned_after_several_deliveries(start: Start, relay: RelayDouble) -> None:
    process = start(*POOLS["prefork"])
    dying_job = claim_stored_job()
    relay.publish(
        dying_job._replace(task="extra.jobs.die", args="[]"), make_claimed_job(dying_job.id + 1, "jobs.add", 1)
    )
    assert relay.outcomes(1)[dying_job.id + 1].outcome.status == "completed"
    returned = relay.next_returned()
    assert (returned.ref, returned.reason) == (dying_job.ref, "delivery_limit")
    assert process.log.count("dies here") == topology.DELIVERY_LIMIT + 1


def claim_stored_job() -> ClaimedJob:
    """Insert a job and claim it, so that its row is running."""
    add.using(queue_name="carried").defer(1)
    (job,) = Store("default").claim(queue_names=["carried"], limit=1, worker_id="r:0123456789ab")
    return job


def test_a_job_that_is_delivered_again_runs_only_if_its_lease_is_valid(
    start: Start, relay: RelayDouble, broker_url: str
) -> None:
    settled, valid = claim_stored_job(), claim_stored_job()
    Store("default").settle([Settlement(*settled.ref, COMPLETED)])
    relay.publish(*[job._replace(task="tests.app.jobs.record", args=f'["{job.id}"]') for job in (settled, valid)])
    with Connection(broker_url) as connection:  # type: ignore[no-untyped-call]
        channel: Any = connection.default_channel
        messages = [wait_until(lambda: channel.basic_get("pdf"), "the job") for _ in range(2)]
        for message in messages:
            channel.basic_reject(message.delivery_tag, requeue=True)
    start("--pool", "prefork", "-c", "1")
    assert list(relay.outcomes(1)) == [valid.id]
    relay.publish(make_claimed_job(valid.id + 1, "jobs.add", 1))
    assert list(relay.outcomes(1)) == [valid.id + 1]
    assert list(Ledger.objects.values_list("entry", flat=True)) == [str(valid.id)]


def test_a_stuck_job_in_celery_fails_and_its_process_is_replaced(start: Start, relay: RelayDouble) -> None:
    process = start("--pool", "prefork", "-c", "1")
    relay.publish(make_claimed_job(1, "extra.jobs.who"))
    [pid, *_] = result_of(relay, 1)
    relay.publish(make_claimed_job(2, "extra.jobs.hang", timeout=0.2))
    assert "it is stuck" in str(relay.outcomes(1)[2].outcome.error)
    wait_until(lambda: not is_alive(pid), "the process ends")
    relay.publish(make_claimed_job(3, "extra.jobs.who"))
    [next_pid, *_] = result_of(relay, 3)
    assert next_pid != pid
    stop_cleanly(process)


def result_of(relay: RelayDouble, job_id: int) -> list[Any]:
    result: list[Any] = json.loads(str(relay.outcomes(1)[job_id].outcome.result))
    return result


def test_a_message_of_another_wire_format_is_returned(
    start: Start, relay: RelayDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(*POOLS["threads"])
    monkeypatch.setattr("django_skipqueue.contrib.celery.wire.WIRE_FORMAT", 99)
    relay.publish(make_claimed_job(1, "jobs.add", 1))
    monkeypatch.undo()
    returned = relay.next_returned()
    assert (returned.ref, returned.reason, returned.job) == ((1, 1), "rejected", None)


def test_outcomes_wait_while_the_broker_is_down(
    rabbitmq: RabbitMQ, start: Start, relay: RelayDouble, pool: tuple[str, ...]
) -> None:
    """The broker is killed while tasks run. Their outcomes arrive once the broker runs again."""
    process = start(*pool)
    relay.publish(*[make_claimed_job(number, "jobs.record_and_hold", f"begun {number}") for number in (1, 2)])
    wait_until(lambda: Ledger.objects.count() == 2, "both jobs run")
    rabbitmq.kill()
    relay.carrier.close()
    Ledger.objects.create(entry="go")
    process.wait_for("outcomes wait")
    rabbitmq.start()
    relay.carrier.connect()
    attempts = relay.outcomes(2)
    assert {attempt.outcome.status for attempt in attempts.values()} == {"completed"}


def test_settings_of_celery_that_would_lose_or_interrupt_jobs_do_not_apply(
    start: Start, relay: RelayDouble, tmp_path: Path
) -> None:
    """With these settings, an unprotected Celery would lose or interrupt a job, or store its result."""
    start(
        *POOLS["prefork"],
        task_always_eager=True,
        task_acks_late=False,
        task_ignore_result=False,
        task_store_errors_even_if_ignored=True,
        task_track_started=True,
        task_serializer="pickle",
        result_backend=f"file://{tmp_path}",
        task_time_limit=1,
        task_soft_time_limit=0.5,
        task_default_rate_limit="1/h",
        worker_prefetch_multiplier=1,
        task_reject_on_worker_lost=False,
        task_acks_on_failure_or_timeout=True,
    )
    relay.publish(*[make_claimed_job(number, "jobs.slow", 1.5) for number in range(1, 5)])
    attempts = relay.outcomes(4)
    assert {attempt.outcome for attempt in attempts.values()} == {Outcome("completed", result="1.5")}


def test_a_celery_worker_that_is_stopped_finishes_its_running_jobs(start: Start, relay: RelayDouble) -> None:
    process = start(*POOLS["threads"])
    relay.publish(make_claimed_job(1, "jobs.record_and_hold", "begun"))
    wait_until(lambda: Ledger.objects.count() == 1, "the task runs")
    process.send(signal.SIGTERM)
    process.wait_for("Warm shutdown")
    Ledger.objects.create(entry="go")
    assert relay.outcomes(1)[1].outcome.status == "completed"
    assert process.wait() == 0


def test_a_celery_worker_that_is_stopped_acknowledges_the_jobs_that_have_ended(
    start: Start, relay: RelayDouble, broker_url: str, pool: tuple[str, ...]
) -> None:
    """The broker would deliver unacknowledged jobs again."""
    process = start(*pool, worker_prefetch_multiplier=10)
    relay.publish(make_claimed_job(1, "jobs.add", 1))
    relay.outcomes(1)
    relay.publish(make_claimed_job(2, "jobs.add", 1), make_claimed_job(3, "jobs.add", 1))
    wait_until(lambda: process.log.count("succeeded in") == 3, "the jobs have run")
    stop_cleanly(process)
    assert set(relay.outcomes(2)) == {2, 3}
    with closing(FakeCeleryWorker(broker_url)) as consumer:
        assert consumer.count_messages("pdf") == 0


SOURCE_OF_RECEIVER = """
from celery import signals

@signals.task_success.connect
def show(result=None, **_):
    os.write(2, f"signalled {result}\\n".encode())
"""


def test_neither_logs_nor_signals_of_celery_contain_the_result(
    start: Start, relay: RelayDouble, broker_url: str, pool: tuple[str, ...]
) -> None:
    """Only the task and the relay see the result."""
    process = start(*pool, more_jobs=SOURCE_OF_RECEIVER)
    relay.publish(make_claimed_job(1, "jobs.echo", "hush-hush"))
    assert relay.outcomes(1)[1].outcome.result == '"hush-hush"'
    process.wait_for("signalled None")
    stop_cleanly(process)
    assert "hush-hush" not in process.log
    with closing(FakeCeleryWorker(broker_url)) as consumer:
        assert consumer.count_messages("pdf") == 0


MORE_POOLS = POOLS | {"solo": ("--pool", "solo"), "auto": ("-c", "auto")}


@pytest.mark.parametrize("name", list(MORE_POOLS))
def test_no_message_is_left_with_the_broker(start: Start, relay: RelayDouble, broker_url: str, name: str) -> None:
    process = start(*MORE_POOLS[name])
    relay.publish(*[make_claimed_job(number, "jobs.add", 1) for number in range(20)])
    relay.publish(make_claimed_job(20, "jobs.echo", "x" * 300_000))
    assert len(relay.outcomes(21)) == 21
    stop_cleanly(process)
    with closing(FakeCeleryWorker(broker_url)) as consumer:
        assert consumer.count_messages("pdf") == 0


def test_a_job_of_an_unknown_database_is_returned(
    start: Start, relay: RelayDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it ran, anyone who can write to the broker could make each process start a thread per invented name."""
    start(*POOLS["threads"])
    original = wire.job_to_wire
    monkeypatch.setattr(wire, "job_to_wire", lambda job, _: original(job, "elsewhere@1"))
    relay.publish(make_claimed_job(1, "jobs.add", 1))
    returned = relay.next_returned()
    assert (returned.ref, returned.reason) == ((1, 1), "rejected")
