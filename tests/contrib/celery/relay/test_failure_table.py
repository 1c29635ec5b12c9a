"""One test for each row of the table of failures (in the docs): who dies when, and what becomes of the job.

Each test also checks who holds the job at that moment. The relays are `manage.py runrelay` and the broker is RabbitMQ.
A few tests use a real Celery worker. The others use a fake worker, because it can die at an exact instant.
"""

import os
import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django.db.models.functions import Now

from django_skipqueue.contrib.celery import rabbitmq as topology
from django_skipqueue.contrib.celery import wire
from django_skipqueue.contrib.celery.carrier import carrier_id, home_of
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from scripts.embedded_rabbitmq import RabbitMQ

from ....app.carriers import make_carrier
from ....app.jobs import echo_length, noop, record
from ....app.models import Ledger
from ....app.waiting import wait_until
from ....harness.processes import ManagePy, children, wait_for_statuses
from ....harness.proxy import Proxy
from ..carried.celery_worker import APP, start_worker
from . import halting
from .consumer import FakeCeleryWorker, read_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,  # each test kills a part of RabbitMQ, a relay or Celery
]

CARRIER = carrier_id("celery")
CARRIER_STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
HOME = home_of("default", CARRIER_STARTED_AT)
OUTCOME_QUEUE, RETURN_QUEUE = topology.outcome_queue(HOME), topology.back_queue(HOME)
LONG_AGO = timedelta(days=1)
WORKER_TIMEOUT = "600"
"""In seconds. It is so long that no supervisor considers another's relay dead, unless a test sets a shorter one."""

StartProcess = Callable[..., ManagePy]
defer_carried = partial(noop.using(queue_name="carried").defer)


@pytest.fixture(autouse=True)
def row_of_carrier(transactional_db: None) -> None:
    """Make the carrier's row, as its first relay does. The names of the queues contain the row's time."""
    make_carrier(queues=["carried"])
    Worker.objects.filter(pk=CARRIER).update(started_at=CARRIER_STARTED_AT)


@pytest.fixture(scope="module")
def vhost(rabbitmq_node: RabbitMQ) -> str:
    """Add a virtual host, and return its name. All tests of the module share it, because adding one takes seconds."""
    name = f"table-{secrets.token_hex(4)}"
    rabbitmq_node.add_vhost(name)
    return name


@pytest.fixture
def empty_vhost_url(rabbitmq: RabbitMQ, vhost: str) -> str:
    """Delete the queues of the virtual host, and return its URL."""
    with closing(FakeCeleryWorker(rabbitmq.url(vhost))) as celery_worker:
        for queue in ("pdf", OUTCOME_QUEUE, RETURN_QUEUE, topology.FOREIGN):
            celery_worker.channel.queue_delete(queue)
    return rabbitmq.url(vhost)


@pytest.fixture
def halt_marker(tmp_path: Path) -> Path:
    """Return the path of the file into which a process that halts at its step writes its process id."""
    return tmp_path / "halted"


@pytest.fixture
def start_relay(manage: StartProcess, empty_vhost_url: str, halt_marker: Path) -> StartProcess:
    """Return a function that starts `manage.py runrelay`. Its first relay halts at the step `halt`, if one is given."""

    def start_relay(
        *arguments: str, halt: str = "", broker: str = empty_vhost_url, wait: float = 600, **options: Any
    ) -> ManagePy:
        carrier = {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}, "WAIT": wait}
        return manage(
            *("runrelay", "--worker-timeout", WORKER_TIMEOUT, *arguments),
            skipqueue={"CARRIERS": {"celery": carrier}},
            jobs=halting.source_of_halting_module(halt, halt_marker) if halt else None,
            environment={"TESTS_BROKER_URL": broker},
            **options,
        )

    return start_relay


@pytest.fixture
def celery_worker(empty_vhost_url: str) -> Iterator[FakeCeleryWorker]:
    """Yield a fake worker of Celery. It creates no queues; the first relay does."""
    with closing(FakeCeleryWorker(empty_vhost_url)) as worker:
        yield worker


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    with closing(Proxy(lambda: socket.create_connection(("127.0.0.1", port)))) as proxy:
        yield proxy


def url_through(proxy: Proxy, empty_vhost_url: str) -> str:
    """Return the URL of the same virtual host, with the port of the proxy."""
    return re.sub(r":\d+/", f":{proxy.port}/", empty_vhost_url)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def pid_of_relay(process: ManagePy) -> int:
    """Return the process id of the only relay of this supervisor."""
    [pid] = wait_until(lambda: children(process.process.pid), "a relay")
    return pid


def kill_with_supervisor(process: ManagePy) -> None:
    """Kill the supervisor and its relays, as if the machine were gone."""
    process.send_to_group(signal.SIGKILL)
    process.wait()


def stop_process(process: ManagePy) -> None:
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log


def holder_by_job() -> dict[int, str]:
    """Return for each running job the worker that holds it (`locked_by`)."""
    return dict(Job.objects.running().values_list("pk", "locked_by"))


def is_with_the_carrier(*jobs: Job) -> bool:
    return holder_by_job() == dict.fromkeys([job.pk for job in jobs], CARRIER)


def relay_id() -> str:
    """Return the id of the only relay. The rows of the jobs that it holds contain this id."""
    return str(WorkerOfCelery.objects.get(relay_of="celery", pk__in=Worker.objects.values("pk")).pk)


class JobAndLease(NamedTuple):
    job_id: int
    lease: int
    """The number that grows whenever another process takes or gives back the job."""


def job_and_lease_in(message: Any) -> JobAndLease:
    job = read_job(message)
    assert message.properties["correlation_id"] == wire.message_id(HOME, job.ref)
    return JobAndLease(*job.ref)


class FinalState(NamedTuple):
    """What a job has come to."""

    status: str
    result: Any
    attempts: int
    lease: int


def final_state(job: Job) -> FinalState:
    job.refresh_from_db()
    return FinalState(job.status, job.result, job.attempts, job.lease)


def make_a_day_old(**rows: Any) -> None:
    """Set the heartbeats of these workers and the `locked_at` of all running jobs back by a day."""
    Worker.objects.filter(**rows).update(heartbeat_at=Now() - LONG_AGO)
    Job.objects.running().update(locked_at=Now() - LONG_AGO)


def all_messages_are_acknowledged(process: ManagePy, celery_worker: FakeCeleryWorker) -> bool:
    """Stop the relay and look for messages: the broker would deliver unacknowledged messages again."""
    stop_process(process)
    return [celery_worker.count_messages(queue) for queue in ("pdf", OUTCOME_QUEUE, RETURN_QUEUE)] == [0, 0, 0]


# The relay dies


def test_a_relay_dies_after_the_claim_and_before_the_publish(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, halt_marker: Path
) -> None:
    job = defer_carried()
    process = start_relay(halt="claimed")
    pid = halting.pid_of_halted(halt_marker)
    assert holder_by_job() == {job.pk: relay_id()}
    assert celery_worker.count_messages("pdf") == 0
    kill(pid)
    message = celery_worker.get()
    # The lease has grown three times: with the first claim, the supervisor's release, and the next relay's claim.
    assert job_and_lease_in(message) == JobAndLease(job.pk, lease=3)
    wait_until(lambda: is_with_the_carrier(job))
    celery_worker.finish(message, result=1)
    wait_for_statuses(completed=1)
    assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=4)
    assert (job.errors, job.deaths) == ([], None)
    assert all_messages_are_acknowledged(process, celery_worker)


@pytest.mark.parametrize("step", ["published", "confirmed"])
def test_a_relay_dies_after_the_publish_and_before_the_hand_over(
    step: str, start_relay: StartProcess, celery_worker: FakeCeleryWorker, halt_marker: Path
) -> None:
    """The relay dies before the confirm at the step `published`, and after the confirm at the step `confirmed`."""
    job = defer_carried()
    process = start_relay(halt=step)
    pid = halting.pid_of_halted(halt_marker)
    first_message = celery_worker.get()
    assert job_and_lease_in(first_message) == JobAndLease(job.pk, lease=1)
    assert holder_by_job() == {job.pk: relay_id()}
    kill(pid)
    second_message = celery_worker.get()
    assert job_and_lease_in(second_message) == JobAndLease(job.pk, lease=3), (
        "the broker has the first message too, so the job runs twice"
    )
    celery_worker.finish(first_message, result=1)
    process.wait_for("lease lost")
    celery_worker.finish(second_message, result=2)
    wait_for_statuses(completed=1)
    assert final_state(job) == FinalState("completed", result=2, attempts=1, lease=4)
    assert (job.errors, job.deaths) == ([], None)
    assert all_messages_are_acknowledged(process, celery_worker)


def test_a_relay_dies_after_the_hand_over(start_relay: StartProcess, celery_worker: FakeCeleryWorker) -> None:
    job = defer_carried()
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(job))
    message, pid = celery_worker.get(), pid_of_relay(process)
    kill(pid)
    wait_until(lambda: pid_of_relay(process) != pid, "another relay")
    celery_worker.finish(message, result=1)
    wait_for_statuses(completed=1)
    assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=2)
    assert all_messages_are_acknowledged(process, celery_worker)


def test_a_relay_dies_after_the_settle_and_before_the_acknowledgement(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, halt_marker: Path
) -> None:
    job = defer_carried()
    process = start_relay(halt="settled")
    wait_until(lambda: is_with_the_carrier(job))
    celery_worker.finish(celery_worker.get(), result=1)
    pid = halting.pid_of_halted(halt_marker)
    assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=2)
    kill(pid)
    defer_carried()
    celery_worker.finish(celery_worker.get(), result=2)
    wait_for_statuses(completed=2)  # so the first job's outcome, which comes again, was read before
    assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=2)
    assert all_messages_are_acknowledged(process, celery_worker)


def test_the_machine_of_a_relay_dies(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, halt_marker: Path
) -> None:
    job = defer_carried()
    dying_process = start_relay("--name", "gone", halt="claimed")
    halting.pid_of_halted(halt_marker)
    dead_relay_id = relay_id()
    assert holder_by_job() == {job.pk: dead_relay_id}
    kill_with_supervisor(dying_process)
    assert Store.default().recover(worker_timeout=float(WORKER_TIMEOUT)) == [], "not before the worker timeout"
    assert holder_by_job() == {job.pk: dead_relay_id}
    process = start_relay("--name", "other", "--worker-timeout", "8")
    message = celery_worker.get()
    assert job_and_lease_in(message) == JobAndLease(job.pk, lease=3)
    celery_worker.finish(message, result=1)
    wait_for_statuses(completed=1)
    assert final_state(job) == FinalState("completed", result=1, attempts=2, lease=4), "the first attempt is charged"
    [error] = job.errors
    assert (error["exception"].rpartition(".")[2], error["worker_id"]) == ("WorkerDied", dead_relay_id)
    assert all_messages_are_acknowledged(process, celery_worker)


def test_all_relays_are_gone_for_a_day(start_relay: StartProcess, celery_worker: FakeCeleryWorker) -> None:
    jobs = [defer_carried() for _ in range(3)]
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(*jobs))
    kill_with_supervisor(process)
    later_job = defer_carried()
    make_a_day_old()
    assert Store.default().recover(worker_timeout=1.0) == []
    for result in range(3):
        celery_worker.finish(celery_worker.get(), result)
    assert is_with_the_carrier(*jobs), "the outcomes wait in the broker"
    assert (celery_worker.count_messages(OUTCOME_QUEUE), celery_worker.count_messages("pdf")) == (3, 0)
    process = start_relay()
    message = celery_worker.get()
    assert job_and_lease_in(message).job_id == later_job.pk
    celery_worker.finish(message, result=3)
    wait_for_statuses(completed=4)
    assert [final_state(job) for job in (*jobs, later_job)] == [
        FinalState("completed", result=result, attempts=1, lease=2) for result in range(4)
    ]
    assert all_messages_are_acknowledged(process, celery_worker)


# Workers of Celery die


def has_changed_hands(job: Job, lease: int) -> bool:
    return final_state(job).lease > lease


def die_with_the_next_job(empty_vhost_url: str, *, begins: bool = True) -> JobAndLease:
    """Let a process of Celery take the next job and die. `begins`: whether it begins the job before it dies."""
    with closing(FakeCeleryWorker(empty_vhost_url)) as dying:
        message = dying.get()
        # A process sends a note that a job begins only if the broker has delivered the message before.
        if begins and message.delivery_info["redelivered"]:
            dying.send_together([wire.encode_begun(read_job(message).ref, HOME)], home=HOME)
        return job_and_lease_in(message)


def test_a_process_of_celery_dies_in_the_task_three_times(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, empty_vhost_url: str
) -> None:
    job = defer_carried()
    process = start_relay()
    for attempt, lease in ((1, 1), (2, 3), (3, 5)):  # the recovery and the next claim each raise the lease
        Job.objects.filter(pk=job.pk).run_now()  # after its second failure, the job would wait for up to 30 s
        wait_until(lambda: is_with_the_carrier(job))
        for _ in range(topology.DELIVERY_LIMIT + 1):
            assert die_with_the_next_job(empty_vhost_url) == JobAndLease(job.pk, lease=lease)
        wait_until(partial(has_changed_hands, job, lease), "the job comes back")
        assert (job.attempts >= attempt, len(job.errors)) == (True, attempt)
    assert final_state(job) == FinalState("failed", result=None, attempts=3, lease=6)
    assert job.last_error.startswith("WorkerDied: ")
    assert [error["worker"] for error in job.errors] == ["celery"] * 3
    assert all_messages_are_acknowledged(process, celery_worker)


def test_workers_of_celery_die_before_they_begin_the_job(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, empty_vhost_url: str
) -> None:
    job = defer_carried()
    process = start_relay()
    for lease in (1, 3, 5, 7):
        wait_until(lambda: is_with_the_carrier(job))
        for _ in range(topology.DELIVERY_LIMIT + 1):
            assert die_with_the_next_job(empty_vhost_url, begins=False) == JobAndLease(job.pk, lease=lease)
        wait_until(partial(has_changed_hands, job, lease), "the job comes back")
    celery_worker.finish(celery_worker.get(), result=1)
    wait_for_statuses(completed=1)
    state = final_state(job)
    assert (state.status, state.result, state.attempts, job.errors) == ("completed", 1, 1, [])
    process.wait_for("carried jobs not begun")
    assert all_messages_are_acknowledged(process, celery_worker)


def test_a_process_of_a_real_celery_worker_dies_in_the_task(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, manage: StartProcess, empty_vhost_url: str
) -> None:
    job = Job.objects.enqueue("extra.jobs.die", queue_name="carried", max_attempts=1)
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(job))
    celery = start_worker(manage, empty_vhost_url, "--pool", "prefork", "-c", "1")
    wait_for_statuses(failed=1)
    assert final_state(job) == FinalState("failed", result=None, attempts=1, lease=2)
    assert job.last_error.startswith("WorkerDied: ")
    assert celery.log.count("dies here") == topology.DELIVERY_LIMIT + 1
    assert all_messages_are_acknowledged(process, celery_worker)


def test_a_process_of_celery_dies_after_the_outcome_and_before_the_acknowledgement(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, empty_vhost_url: str
) -> None:
    """The job runs again although the relay has written the outcome. The relay drops the second outcome."""
    job = defer_carried()
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(job))
    with closing(FakeCeleryWorker(empty_vhost_url)) as dying:
        dying.finish(dying.get(), result=1, acknowledge=False)
        wait_for_statuses(completed=1)
    redelivered = celery_worker.get()
    assert job_and_lease_in(redelivered) == JobAndLease(job.pk, lease=1)
    celery_worker.finish(redelivered, result=2)
    process.wait_for("outcome dropped")
    assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=2)
    assert all_messages_are_acknowledged(process, celery_worker)


SOURCE_THAT_KILLS_ITS_PROCESS = """
from {module} import {cls}
from tests.contrib.celery.relay.halting import is_first

original = {cls}.{method}

def kill_once(self, *arguments):
    if is_first({marker!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments)

{cls}.{method} = kill_once
"""


@pytest.fixture
def check_job_runs_twice(
    start_relay: StartProcess, manage: StartProcess, celery_worker: FakeCeleryWorker, empty_vhost_url: str
) -> Callable[..., None]:
    """Return a function that kills a process of Celery with this source, and checks that the job then runs twice."""

    def check_after_kill(source: str, *, outcome_count: int, kills_main_process: bool) -> None:
        job = record.using(queue_name="carried").defer("it ran")
        process = start_relay()
        wait_until(lambda: is_with_the_carrier(job))
        kill_with_supervisor(process)
        worker = start_worker(manage, empty_vhost_url, "--pool", "prefork", "-c", "1", more_jobs=source)
        if kills_main_process:
            worker.wait()
            start_worker(manage, empty_vhost_url, "--pool", "prefork", "-c", "1", more_jobs=source)
        message_count = outcome_count + 1  # the second run has also sent a note that it begins
        wait_until(
            lambda: celery_worker.count_messages(OUTCOME_QUEUE) == message_count, "the outcomes are in the queue"
        )
        assert is_with_the_carrier(job)
        assert list(Ledger.objects.values_list("entry", flat=True)) == ["it ran"] * 2
        process = start_relay()
        wait_for_statuses(completed=1)
        wait_until(lambda: celery_worker.count_messages(OUTCOME_QUEUE) == 0, "the relay has read the outcomes")
        state = final_state(job)
        assert (state.status, state.attempts, state.lease) == ("completed", 1, 2)
        assert all_messages_are_acknowledged(process, celery_worker)

    return check_after_kill


def test_a_process_of_celery_dies_after_the_task_and_before_the_outcome(
    check_job_runs_twice: Callable[..., None], halt_marker: Path
) -> None:
    """The broker has no outcome, so the job runs again."""
    module, name = "django_skipqueue.contrib.celery.outcome_sender", "OutcomeSender"
    source = SOURCE_THAT_KILLS_ITS_PROCESS.format(module=module, cls=name, method="send", marker=str(halt_marker))
    check_job_runs_twice(source, outcome_count=1, kills_main_process=False)


def test_the_main_process_of_celery_dies_before_the_acknowledgement(
    check_job_runs_twice: Callable[..., None], halt_marker: Path
) -> None:
    """The broker has the outcome, but no relay has written it. So the job runs again."""
    source = SOURCE_THAT_KILLS_ITS_PROCESS.format(
        module="celery.worker.request", cls="Request", method="acknowledge", marker=str(halt_marker)
    )
    check_job_runs_twice(source, outcome_count=2, kills_main_process=True)


def test_no_worker_of_celery_runs_until_the_job_expires(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker
) -> None:
    job = defer_carried()
    process = start_relay(wait=1)
    wait_until(lambda: is_with_the_carrier(job))
    process.wait_for("reason=expired")
    celery_worker.finish(message := celery_worker.get(), result=1)
    assert job_and_lease_in(message).lease >= 3
    wait_for_statuses(completed=1)
    state = final_state(job)
    assert (state.status, state.result, state.attempts, job.errors) == ("completed", 1, 1, [])
    assert all_messages_are_acknowledged(process, celery_worker)


# The broker, or PostgreSQL, fails


def test_the_broker_restarts(start_relay: StartProcess, empty_vhost_url: str, rabbitmq: RabbitMQ) -> None:
    confirmed = defer_carried()
    with proxy_to(rabbitmq.port) as proxy:
        process = start_relay(broker=url_through(proxy, empty_vhost_url))
        wait_until(lambda: is_with_the_carrier(confirmed))
        proxy.stall("client")  # from now on, no confirm reaches the relay
        unconfirmed = defer_carried()
        with closing(FakeCeleryWorker(empty_vhost_url)) as celery_worker:
            wait_until(lambda: celery_worker.count_messages("pdf") == 2, "the broker has both")
        assert holder_by_job() == {confirmed.pk: CARRIER, unconfirmed.pk: relay_id()}
        assert "pdf" in rabbitmq.control("list_queues", "--vhost", urlsplit(empty_vhost_url).path[1:], "name")
        proxy.refuse()
        rabbitmq.stop()  # instead of `kill`, which may lose a quorum queue that is a second old
        proxy.cut()
        process.wait_for("carrier lost")
        rabbitmq.start()
        proxy.flow()
        proxy.refuse(refusing=False)
        wait_until(lambda: is_with_the_carrier(confirmed, unconfirmed))
        with closing(FakeCeleryWorker(empty_vhost_url)) as celery_worker:
            messages = set()
            for result in range(3):
                message = celery_worker.get()
                messages.add(job_and_lease_in(message))
                celery_worker.finish(message, result)
            wait_for_statuses(completed=2)
            # Only the unconfirmed job was published twice, the second time under a new lease.
            assert messages == {
                JobAndLease(confirmed.pk, lease=1),
                JobAndLease(unconfirmed.pk, lease=1),
                JobAndLease(unconfirmed.pk, lease=3),
            }
            assert (final_state(confirmed).attempts, final_state(confirmed).lease) == (1, 2)
            assert (final_state(unconfirmed).attempts, final_state(unconfirmed).lease) == (1, 4)
            assert all_messages_are_acknowledged(process, celery_worker)


def test_the_broker_loses_its_disk(
    start_relay: StartProcess, manage: StartProcess, empty_vhost_url: str, rabbitmq: RabbitMQ, vhost: str
) -> None:
    job = defer_carried()
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(job))
    rabbitmq.control("delete_vhost", vhost)
    process.wait_for("carrier lost")
    rabbitmq.add_vhost(vhost)
    process.wait_for("carrier back")
    make_a_day_old(is_external=True)
    assert Store.default().recover(worker_timeout=1.0) == []
    with closing(FakeCeleryWorker(empty_vhost_url)) as celery_worker:
        assert celery_worker.count_messages("pdf") == 0
        assert is_with_the_carrier(job), "nobody reports the lost job"
        reclaiming = start_relay("--reclaim", "celery", "--yes")
        assert reclaiming.wait() == 0
        assert "1 job of celery released" in reclaiming.log
        message = celery_worker.get()
        assert job_and_lease_in(message) == JobAndLease(job.pk, lease=3)
        celery_worker.finish(message, result=1)
        wait_for_statuses(completed=1)
        assert final_state(job) == FinalState("completed", result=1, attempts=1, lease=4)
        assert all_messages_are_acknowledged(process, celery_worker)


def test_the_connection_to_postgresql_is_lost(start_relay: StartProcess, celery_worker: FakeCeleryWorker) -> None:
    jobs = [defer_carried() for _ in range(2)]
    with closing(Proxy()) as proxy:
        process = start_relay(settings=f'DATABASES["default"].update({proxy.settings!r})')
        wait_until(lambda: is_with_the_carrier(*jobs))
        proxy.refuse()
        proxy.cut()
        for result in range(2):
            celery_worker.finish(celery_worker.get(), result)
        process.wait_for('database lost who="relay')
        assert is_with_the_carrier(*jobs), "PostgreSQL still shows the jobs with the carrier"
        proxy.refuse(refusing=False)
        wait_for_statuses(completed=2)
        assert [final_state(job) for job in jobs] == [
            FinalState("completed", result=result, attempts=1, lease=2) for result in range(2)
        ]
        assert all_messages_are_acknowledged(process, celery_worker)


def test_a_broker_accepts_smaller_messages_than_the_setting_says(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker, small_message_limit: int
) -> None:
    large, small = (echo_length.using(queue_name="carried").defer("x" * size) for size in (2 * small_message_limit, 10))
    process = start_relay()
    process.wait_for(f"larger than configured max size {small_message_limit}")
    wait_for_statuses(failed=1, running=1)
    assert final_state(large).status == "failed"
    assert f"accepts at most {small_message_limit:,}" in large.errors[0]["message"]
    wait_until(lambda: is_with_the_carrier(small))
    assert process.log.count("carrier lost") == 1
    ids_of_sent_jobs = [job_and_lease_in(message).job_id for message in messages_in_queue(celery_worker)]
    assert set(ids_of_sent_jobs) == {small.pk}, "the small job is there twice if the connection broke while it was sent"


def messages_in_queue(celery_worker: FakeCeleryWorker) -> list[Any]:
    """Return the messages that are in Celery's queue now, at least one."""
    wait_until(lambda: celery_worker.count_messages("pdf"), "a message")
    return [celery_worker.get() for _ in range(celery_worker.count_messages("pdf"))]


# An operator cancels


def test_an_operator_cancels_and_retries_a_job_that_the_carrier_has(
    start_relay: StartProcess, celery_worker: FakeCeleryWorker
) -> None:
    waiting, running = defer_carried(), defer_carried()
    process = start_relay()
    wait_until(lambda: is_with_the_carrier(waiting, running))
    # Like the queue of a Celery worker with remote control.
    order_queue = celery_worker.channel.queue_declare("", exclusive=True).queue
    celery_worker.channel.queue_bind(order_queue, "celery.pidbox")
    message_by_job = {
        job_and_lease_in(message).job_id: message for message in (celery_worker.get(), celery_worker.get())
    }
    assert Store.default().cancel([waiting.pk, running.pk]).keys() == {waiting.pk, running.pk}
    assert final_state(running) == FinalState("discarded", result=None, attempts=1, lease=2)
    revoked_ids = [wire.message_id(HOME, (job.pk, 1)) for job in (waiting, running)]
    order = celery_worker.get(order_queue).body
    assert all(id in order for id in revoked_ids)
    assert Store.default().retry([running.pk]).keys() == {running.pk}
    celery_worker.finish(message_by_job[running.pk], result=1)
    process.wait_for("lease lost")
    new_message = celery_worker.get()
    assert job_and_lease_in(new_message) == JobAndLease(running.pk, lease=4)
    celery_worker.finish(new_message, result=2)
    wait_for_statuses(completed=1, discarded=1)
    assert final_state(running) == FinalState("completed", result=2, attempts=1, lease=5)
    celery_worker.channel.basic_ack(message_by_job[waiting.pk].delivery_tag)  # Celery skips revoked jobs
    assert all_messages_are_acknowledged(process, celery_worker)
