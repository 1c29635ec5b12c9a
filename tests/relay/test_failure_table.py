"""Who dies when, what the row says at that moment, and what becomes of the job: a test for each row of the table.

The relays are `manage.py runrelay`, the broker is RabbitMQ. Celery's workers are real where they die by themselves;
elsewhere a consumer of the test plays one, which dies at the exact instant.
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
from typing import Any
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

from ..app.carriers import make_carrier
from ..app.jobs import echo_length, noop, record
from ..app.models import Ledger
from ..app.waiting import wait_until
from ..carried.celery_worker import APP, start_worker
from ..harness.processes import ManagePy, children, wait_for_statuses
from ..harness.proxy import Proxy
from . import halting
from .consumer import Consumer, job_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,  # each kills a part of RabbitMQ, a relay or Celery
]

CARRIER = carrier_id("celery")
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
HOME = home_of("default", SINCE)
OUTCOMES, BACK = topology.outcome_queue(HOME), topology.back_queue(HOME)
LONG_AGO = timedelta(days=1)
WORKER_TIMEOUT = "600"
"""Seconds: whatever happens within a test, no supervisor takes a relay of another for dead, unless the test says so."""

Start = Callable[..., ManagePy]
carried = partial(noop.using(queue_name="carried").defer)


@pytest.fixture(autouse=True)
def carrier_row(transactional_db: None) -> None:
    """The row of the carrier, as the first relay has left it: its time is in the names of the queues."""
    make_carrier(queues=["carried"])
    Worker.objects.filter(pk=CARRIER).update(started_at=SINCE)


@pytest.fixture(scope="module")
def vhost(rabbitmq_node: RabbitMQ) -> str:
    """The virtual host of all tests here: to make one takes seconds."""
    name = f"table-{secrets.token_hex(4)}"
    rabbitmq_node.add_vhost(name)
    return name


@pytest.fixture
def url(rabbitmq: RabbitMQ, vhost: str) -> str:
    """The URL of the virtual host, without a queue in it."""
    with closing(Consumer(rabbitmq.url(vhost))) as consumer:
        for queue in ("pdf", OUTCOMES, BACK, topology.FOREIGN):
            consumer.channel.queue_delete(queue)
    return rabbitmq.url(vhost)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Who stops at its step writes its process id into it."""
    return tmp_path / "halted"


@pytest.fixture
def start(manage: Start, url: str, marker: Path) -> Start:
    """Starts `manage.py runrelay`. Its first relay stops at the step `halt`."""

    def start(*arguments: str, halt: str = "", broker: str = url, wait: float = 600, **options: Any) -> ManagePy:
        carrier = {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}, "WAIT": wait}
        return manage(
            *("runrelay", "--worker-timeout", WORKER_TIMEOUT, *arguments),
            skipqueue={"CARRIERS": {"celery": carrier}},
            jobs=halting.source(halt, marker) if halt else None,
            environment={"TESTS_BROKER_URL": broker},
            **options,
        )

    return start


@pytest.fixture
def consumer(url: str) -> Iterator[Consumer]:
    """Plays a worker of Celery. Its queues are there once a relay is."""
    with closing(Consumer(url)) as made:
        yield made


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    with closing(Proxy(lambda: socket.create_connection(("127.0.0.1", port)))) as made:
        yield made


def through(proxy: Proxy, url: str) -> str:
    """The URL of the same virtual host by way of the proxy."""
    return re.sub(r":\d+/", f":{proxy.port}/", url)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def relay_of(process: ManagePy) -> int:
    """The process id of the one relay of this supervisor."""
    [pid] = wait_until(lambda: children(process.process.pid), "a relay")
    return pid


def kill_with_supervisor(process: ManagePy) -> None:
    """As if the machine were gone."""
    process.send_to_group(signal.SIGKILL)
    process.wait()


def stop(process: ManagePy) -> None:
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log


def holders() -> dict[int, str]:
    """Who holds each running job, by its row."""
    return dict(Job.objects.running().values_list("pk", "locked_by"))


def is_with_the_carrier(*jobs: Job) -> bool:
    return holders() == dict.fromkeys([job.pk for job in jobs], CARRIER)


def relay_id() -> str:
    """The id of the only relay, as it stands in the rows that it holds."""
    return str(WorkerOfCelery.objects.get(relay_of="celery", pk__in=Worker.objects.values("pk")).pk)


def ref_of(message: Any) -> tuple[int, int]:
    """The job and its lease."""
    job = job_of(message)
    assert message.properties["correlation_id"] == wire.message_id(HOME, job.ref)
    return job.ref


def end_of(job: Job) -> tuple[Any, ...]:
    """Its status, its result, the attempts that were charged, and the lease, which each change of hands raises."""
    job.refresh_from_db()
    return job.status, job.result, job.attempts, job.lease


def age(**rows: Any) -> None:
    """Have the database believe that these workers, and all jobs that run, were heard of a day ago."""
    Worker.objects.filter(**rows).update(heartbeat_at=Now() - LONG_AGO)
    Job.objects.running().update(locked_at=Now() - LONG_AGO)


def nothing_is_left(process: ManagePy, consumer: Consumer) -> bool:
    """Whether all messages are acknowledged. Ends the relay: those that it had not acknowledged would be back."""
    stop(process)
    return [consumer.count(queue) for queue in ("pdf", OUTCOMES, BACK)] == [0, 0, 0]


# The relay


def test_relay_after_the_claim_before_the_publish(start: Start, consumer: Consumer, marker: Path) -> None:
    job = carried()
    process = start(halt="claimed")
    pid = halting.halted(marker)
    assert holders() == {job.pk: relay_id()}
    assert consumer.count("pdf") == 0
    kill(pid)
    message = consumer.get()
    assert ref_of(message) == (job.pk, 3), "claimed, released by the supervisor, claimed by the next relay"
    wait_until(lambda: is_with_the_carrier(job))
    consumer.finish(message, 1)
    wait_for_statuses(completed=1)
    assert end_of(job) == ("completed", 1, 1, 4)
    assert (job.errors, job.deaths) == ([], None)
    assert nothing_is_left(process, consumer)


@pytest.mark.parametrize("step", ["published", "confirmed"])
def test_relay_before_the_hand_over(step: str, start: Start, consumer: Consumer, marker: Path) -> None:
    """After the publish and before the confirm; after the confirm and before the hand-over."""
    job = carried()
    process = start(halt=step)
    pid = halting.halted(marker)
    first = consumer.get()
    assert ref_of(first) == (job.pk, 1)
    assert holders() == {job.pk: relay_id()}
    kill(pid)
    second = consumer.get()
    assert ref_of(second) == (job.pk, 3), "the broker had the first one too, so the job runs twice"
    consumer.finish(first, 1)
    process.wait_for("lease lost")
    consumer.finish(second, 2)
    wait_for_statuses(completed=1)
    assert end_of(job) == ("completed", 2, 1, 4)
    assert (job.errors, job.deaths) == ([], None)
    assert nothing_is_left(process, consumer)


def test_relay_after_the_hand_over(start: Start, consumer: Consumer) -> None:
    job = carried()
    process = start()
    wait_until(lambda: is_with_the_carrier(job))
    message, pid = consumer.get(), relay_of(process)
    kill(pid)
    wait_until(lambda: relay_of(process) != pid, "another relay")
    consumer.finish(message, 1)
    wait_for_statuses(completed=1)
    assert end_of(job) == ("completed", 1, 1, 2)
    assert nothing_is_left(process, consumer)


def test_relay_after_the_settle_before_the_acknowledgement(start: Start, consumer: Consumer, marker: Path) -> None:
    job = carried()
    process = start(halt="settled")
    consumer.finish(wait_until(lambda: is_with_the_carrier(job)) and consumer.get(), 1)
    pid = halting.halted(marker)
    assert end_of(job) == ("completed", 1, 1, 2)
    kill(pid)
    carried()
    consumer.finish(consumer.get(), 2)
    wait_for_statuses(completed=2)  # so the outcome of the first job has come again before
    assert end_of(job) == ("completed", 1, 1, 2)
    assert nothing_is_left(process, consumer)


def test_the_machine_of_the_relay(start: Start, consumer: Consumer, marker: Path) -> None:
    job = carried()
    first = start("--name", "gone", halt="claimed")
    halting.halted(marker)
    dead = relay_id()
    assert holders() == {job.pk: dead}
    kill_with_supervisor(first)
    assert Store.default().recover(worker_timeout=float(WORKER_TIMEOUT)) == [], "not before the worker timeout"
    assert holders() == {job.pk: dead}
    process = start("--name", "other", "--worker-timeout", "8")
    message = consumer.get()
    assert ref_of(message) == (job.pk, 3)
    consumer.finish(message, 1)
    wait_for_statuses(completed=1)
    assert end_of(job) == ("completed", 1, 2, 4), "the first attempt is charged"
    [entry] = job.errors
    assert (entry["exception"].rpartition(".")[2], entry["worker_id"]) == ("WorkerDied", dead)
    assert nothing_is_left(process, consumer)


def test_all_relays_for_a_day(start: Start, consumer: Consumer) -> None:
    jobs = [carried() for _ in range(3)]
    process = start()
    wait_until(lambda: is_with_the_carrier(*jobs))
    kill_with_supervisor(process)
    later = carried()
    age()
    assert Store.default().recover(worker_timeout=1.0) == []
    for number in range(3):
        consumer.finish(consumer.get(), number)
    assert is_with_the_carrier(*jobs), "the outcomes wait in the broker"
    assert (consumer.count(OUTCOMES), consumer.count("pdf")) == (3, 0)
    process = start()
    message = consumer.get()
    assert ref_of(message)[0] == later.pk
    consumer.finish(message, 3)
    wait_for_statuses(completed=4)
    assert [end_of(job) for job in (*jobs, later)] == [("completed", number, 1, 2) for number in range(4)]
    assert nothing_is_left(process, consumer)


# Celery's workers


def has_changed_hands(job: Job, lease: int) -> bool:
    return int(end_of(job)[3]) > lease


def departs_with_the_job(url: str, *, begins: bool = True) -> tuple[int, int]:
    """A process of Celery dies while it runs the next job, or before it begins it."""
    with closing(Consumer(url)) as dying:
        message = dying.get()
        if begins and message.delivery_info["redelivered"]:
            dying.send_together([wire.encode_begun(job_of(message).ref, HOME)], home=HOME)
        return ref_of(message)


def test_celerys_child_in_the_task(start: Start, consumer: Consumer, url: str) -> None:
    job = carried()
    process = start()
    for time, lease in ((1, 1), (2, 3), (3, 5)):
        Job.objects.filter(pk=job.pk).run_now()  # after the second time it waits for up to 30 s
        wait_until(lambda: is_with_the_carrier(job))
        for _ in range(topology.DELIVERY_LIMIT + 1):
            assert departs_with_the_job(url) == (job.pk, lease)
        wait_until(partial(has_changed_hands, job, lease), "it comes back")
        assert (job.attempts >= time, len(job.errors)) == (True, time)
    assert end_of(job) == ("failed", None, 3, 6)
    assert job.last_error.startswith("WorkerDied: ")
    assert [entry["worker"] for entry in job.errors] == ["celery"] * 3
    assert nothing_is_left(process, consumer)


def test_celerys_workers_in_a_crash_loop(start: Start, consumer: Consumer, url: str) -> None:
    """They end before they begin the jobs that they have got."""
    job = carried()
    process = start()
    for lease in (1, 3, 5, 7):
        wait_until(lambda: is_with_the_carrier(job))
        for _ in range(topology.DELIVERY_LIMIT + 1):
            assert departs_with_the_job(url, begins=False) == (job.pk, lease)
        wait_until(partial(has_changed_hands, job, lease), "it comes back")
    consumer.finish(consumer.get(), 1)
    wait_for_statuses(completed=1)
    assert (end_of(job)[:3], job.errors) == (("completed", 1, 1), [])
    process.wait_for("carried jobs not begun")
    assert nothing_is_left(process, consumer)


def test_celerys_child_in_the_task_of_a_real_worker(start: Start, consumer: Consumer, manage: Start, url: str) -> None:
    job = Job.objects.enqueue("extra.jobs.die", queue_name="carried", max_attempts=1)
    process = start()
    wait_until(lambda: is_with_the_carrier(job))
    celery = start_worker(manage, url, "--pool", "prefork", "-c", "1")
    wait_for_statuses(failed=1)
    assert end_of(job) == ("failed", None, 1, 2)
    assert job.last_error.startswith("WorkerDied: ")
    assert celery.log.count("dies here") == topology.DELIVERY_LIMIT + 1
    assert nothing_is_left(process, consumer)


def test_celerys_child_before_the_acknowledgement(start: Start, consumer: Consumer, url: str) -> None:
    """The relay has written the outcome. Here the job runs again all the same."""
    job = carried()
    process = start()
    wait_until(lambda: is_with_the_carrier(job))
    with closing(Consumer(url)) as dying:
        dying.finish(dying.get(), 1, acknowledge=False)
        wait_for_statuses(completed=1)
    again = consumer.get()
    assert ref_of(again) == (job.pk, 1)
    consumer.finish(again, 2)
    process.wait_for("outcome dropped")
    assert end_of(job) == ("completed", 1, 1, 2)
    assert nothing_is_left(process, consumer)


DIES = """
from {module} import {cls}
from tests.relay.halting import is_first

original = {cls}.{method}

def dies(self, *arguments):
    if is_first({marker!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments)

{cls}.{method} = dies
"""


@pytest.fixture
def runs_twice(start: Start, manage: Start, consumer: Consumer, url: str) -> Callable[..., None]:
    """A check: this source kills one of Celery's processes, a job runs twice, and so many outcomes come."""

    def check(source: str, *, outcomes: int, is_main: bool) -> None:
        job = record.using(queue_name="carried").defer("it ran")
        process = start()
        wait_until(lambda: is_with_the_carrier(job))
        kill_with_supervisor(process)
        worker = start_worker(manage, url, "--pool", "prefork", "-c", "1", more_jobs=source)
        if is_main:
            worker.wait()
            start_worker(manage, url, "--pool", "prefork", "-c", "1", more_jobs=source)
        messages = outcomes + 1  # the second run has said that it begins
        wait_until(lambda: consumer.count(OUTCOMES) == messages, "the outcomes are there")
        assert is_with_the_carrier(job)
        assert list(Ledger.objects.values_list("entry", flat=True)) == ["it ran"] * 2
        process = start()
        wait_for_statuses(completed=1)
        wait_until(lambda: consumer.count(OUTCOMES) == 0, "all have come")
        assert (end_of(job)[0], *end_of(job)[2:]) == ("completed", 1, 2)
        assert nothing_is_left(process, consumer)

    return check


def test_celerys_child_after_its_job(runs_twice: Callable[..., None], marker: Path) -> None:
    """The broker has no outcome, so the job runs again."""
    module, name = "django_skipqueue.contrib.celery.outcome_sender", "OutcomeSender"
    source = DIES.format(module=module, cls=name, method="send", marker=str(marker))
    runs_twice(source, outcomes=1, is_main=False)


def test_celerys_main_process_before_the_acknowledgement(runs_twice: Callable[..., None], marker: Path) -> None:
    """The broker has the outcome, but no relay has written it. So the job runs again."""
    source = DIES.format(module="celery.worker.request", cls="Request", method="acknowledge", marker=str(marker))
    runs_twice(source, outcomes=2, is_main=True)


def test_all_of_celerys_workers(start: Start, consumer: Consumer) -> None:
    job = carried()
    process = start(wait=1)
    wait_until(lambda: is_with_the_carrier(job))
    process.wait_for("reason=expired")
    consumer.finish(message := consumer.get(), 1)
    assert ref_of(message)[1] >= 3
    wait_for_statuses(completed=1)
    assert (end_of(job)[:3], job.errors) == (("completed", 1, 1), [])
    assert nothing_is_left(process, consumer)


# The broker, and PostgreSQL


def test_the_broker_restarted(start: Start, url: str, rabbitmq: RabbitMQ) -> None:
    confirmed = carried()
    with proxy_to(rabbitmq.port) as proxy:
        process = start(broker=through(proxy, url))
        wait_until(lambda: is_with_the_carrier(confirmed))
        proxy.stall("client")  # confirms come no more
        unconfirmed = carried()
        with closing(Consumer(url)) as consumer:
            wait_until(lambda: consumer.count("pdf") == 2, "the broker has both")
        assert holders() == {confirmed.pk: CARRIER, unconfirmed.pk: relay_id()}
        assert "pdf" in rabbitmq.control("list_queues", "--vhost", urlsplit(url).path[1:], "name")
        proxy.refuse()
        rabbitmq.stop()  # a kill may lose a quorum queue that is a second old
        proxy.cut()
        process.wait_for("carrier lost")
        rabbitmq.start()
        proxy.flow()
        proxy.refuse(False)
        wait_until(lambda: is_with_the_carrier(confirmed, unconfirmed))
        with closing(Consumer(url)) as consumer:
            refs = set()
            for number in range(3):
                message = consumer.get()
                refs.add(ref_of(message))
                consumer.finish(message, number)
            wait_for_statuses(completed=2)
            assert refs == {(confirmed.pk, 1), (unconfirmed.pk, 1), (unconfirmed.pk, 3)}
            assert end_of(confirmed)[2:] == (1, 2)
            assert end_of(unconfirmed)[2:] == (1, 4)
            assert nothing_is_left(process, consumer)


def test_the_broker_and_its_disk(start: Start, manage: Start, url: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    job = carried()
    process = start()
    wait_until(lambda: is_with_the_carrier(job))
    rabbitmq.control("delete_vhost", vhost)
    process.wait_for("carrier lost")
    rabbitmq.add_vhost(vhost)
    process.wait_for("carrier back")
    age(is_external=True)
    assert Store.default().recover(worker_timeout=1.0) == []
    with closing(Consumer(url)) as consumer:
        assert consumer.count("pdf") == 0
        assert is_with_the_carrier(job), "nobody reports it"
        reclaiming = start("--reclaim", "celery", "--yes")
        assert reclaiming.wait() == 0
        assert "1 job of celery released" in reclaiming.log
        message = consumer.get()
        assert ref_of(message) == (job.pk, 3)
        consumer.finish(message, 1)
        wait_for_statuses(completed=1)
        assert end_of(job) == ("completed", 1, 1, 4)
        assert nothing_is_left(process, consumer)


def test_postgresql(start: Start, consumer: Consumer) -> None:
    jobs = [carried() for _ in range(2)]
    with closing(Proxy()) as proxy:
        process = start(settings=f'DATABASES["default"].update({proxy.settings!r})')
        wait_until(lambda: is_with_the_carrier(*jobs))
        proxy.refuse()
        proxy.cut()
        for number in range(2):
            consumer.finish(consumer.get(), number)
        process.wait_for('database lost who="relay')
        assert is_with_the_carrier(*jobs), "as it was"
        proxy.refuse(False)
        wait_for_statuses(completed=2)
        assert [end_of(job) for job in jobs] == [("completed", number, 1, 2) for number in range(2)]
        assert nothing_is_left(process, consumer)


def test_a_broker_that_takes_less_than_the_setting_says(start: Start, consumer: Consumer, takes_little: int) -> None:
    large, small = (echo_length.using(queue_name="carried").defer("x" * size) for size in (2 * takes_little, 10))
    process = start()
    process.wait_for(f"larger than configured max size {takes_little}")
    wait_for_statuses(failed=1, running=1)
    assert end_of(large)[0] == "failed"
    assert f"takes {takes_little:,} at most" in large.errors[0]["message"]
    wait_until(lambda: is_with_the_carrier(small))
    assert process.log.count("carrier lost") == 1
    numbers = [ref_of(message)[0] for message in all_messages(consumer)]
    assert set(numbers) == {small.pk}, "twice, if it was on its way when the connection broke"


def all_messages(consumer: Consumer) -> list[Any]:
    """What is in Celery's queue now, at least one message."""
    wait_until(lambda: consumer.count("pdf"), "a message")
    return [consumer.get() for _ in range(consumer.count("pdf"))]


# An operator


def test_a_job_that_is_cancelled_and_retried_while_it_is_with_the_carrier(start: Start, consumer: Consumer) -> None:
    waiting, running = carried(), carried()
    process = start()
    wait_until(lambda: is_with_the_carrier(waiting, running))
    orders = consumer.channel.queue_declare(
        "", exclusive=True
    ).queue  # as Celery's workers with remote control have one
    consumer.channel.queue_bind(orders, "celery.pidbox")
    messages = {ref_of(message)[0]: message for message in (consumer.get(), consumer.get())}
    assert Store.default().cancel([waiting.pk, running.pk]).keys() == {waiting.pk, running.pk}
    assert end_of(running) == ("discarded", None, 1, 2)
    revoked = [wire.message_id(HOME, (job.pk, 1)) for job in (waiting, running)]
    order = consumer.get(orders).body
    assert all(id in order for id in revoked)
    assert Store.default().retry([running.pk]).keys() == {running.pk}
    consumer.finish(messages[running.pk], 1)
    process.wait_for("lease lost")
    again = consumer.get()
    assert ref_of(again) == (running.pk, 4)
    consumer.finish(again, 2)
    wait_for_statuses(completed=1, discarded=1)
    assert end_of(running) == ("completed", 2, 1, 5)
    consumer.channel.basic_ack(messages[waiting.pk].delivery_tag)  # Celery skips what is revoked
    assert nothing_is_left(process, consumer)
