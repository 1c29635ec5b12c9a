"""The carrier against a real RabbitMQ. The test acts as the Celery worker, with a connection of its own."""

import json
import select
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import amqp
import pytest
from celery import Celery

from django_skipqueue.contrib.celery import rabbitmq as topology
from django_skipqueue.contrib.celery import wire
from django_skipqueue.contrib.celery.carrier import CarrierMisconfigured, CarrierUnreachable, Taken
from django_skipqueue.contrib.celery.celery_carrier import CeleryCarrier
from django_skipqueue.contrib.celery.rabbitmq import LARGEST_MESSAGE, STEP_SECONDS, AmqpLink
from django_skipqueue.contrib.celery.settings import CarrierSettings, make_carrier
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef
from scripts.embedded_rabbitmq import RabbitMQ

from ....app.waiting import DEADLINE, wait_until
from .consumer import FakeCeleryWorker, read_job
from .test_wire import JOB


def make_job(job_id: int, *, lease: int = 1, args: str = "[]", queue_name: str = "pdf") -> ClaimedJob:
    return JOB._replace(id=job_id, lease=lease, queue_name=queue_name, args=args)


def first_leases(*job_ids: int) -> list[LeaseRef]:
    """Return a pair for each job: its id, and the lease 1."""
    return [(job_id, 1) for job_id in job_ids]


def make_outcome(job: ClaimedJob, status: Any = "completed") -> Attempt:
    return Attempt(job, Outcome(status, result='"done"'), started=10.0, ended=10.25, worker="celery@here")


MakeCarrier = Callable[..., CeleryCarrier]


def make_settings(**options: Any) -> CarrierSettings:
    return CarrierSettings(name="celery", app="", **{"max_message_size": LARGEST_MESSAGE, **options})


@pytest.fixture
def make_connected_carrier(broker_url: str) -> Iterator[MakeCarrier]:
    carriers = []

    def make_carrier_of_test(*, connect: bool = True, wait: float = 600, **options: Any) -> CeleryCarrier:
        queues = options.pop("queues", {"pdf": "pdf"})
        app = Celery("tests", broker=options.pop("url", broker_url))
        carrier = CeleryCarrier(make_settings(queues=queues, wait=wait, **options), app, home="default")
        carriers.append(carrier)
        if connect:
            carrier.connect()
        return carrier

    yield make_carrier_of_test
    for carrier in carriers:
        carrier.close()


@pytest.fixture
def celery_worker(broker_url: str) -> Iterator[FakeCeleryWorker]:
    with closing(FakeCeleryWorker(broker_url)) as worker:
        yield worker


def take_until(carrier: CeleryCarrier, is_enough: Callable[[Taken], Any]) -> Taken:
    """Take from the carrier until the condition is met, and return all that came. Wait as a relay does."""
    taken = Taken()
    deadline = time.monotonic() + DEADLINE
    while not is_enough(taken):
        assert time.monotonic() < deadline, taken
        select.select([carrier.fileno()], [], [], 1)
        taken_now = carrier.take()
        for name in ("confirmed", "refused", "outcomes", "jobs", "begun"):
            getattr(taken, name).extend(getattr(taken_now, name))
    return taken


def is_blocked_after_take(carrier: CeleryCarrier) -> bool:
    carrier.take()
    return carrier.is_blocked


def test_jobs_are_confirmed_and_reach_celerys_queue(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    jobs = [make_job(number, args=json.dumps(["ü" * number])) for number in range(1, 400)]
    carrier.publish(jobs[:200])
    carrier.publish(jobs[200:])
    taken = take_until(carrier, lambda taken: len(taken.confirmed) == len(jobs))
    assert sorted(taken.confirmed) == [job.ref for job in jobs]
    assert not taken.refused
    message = celery_worker.get()
    message.headers.pop("x-delivery-count")  # the broker adds this header
    assert message.headers == {
        "lang": "py",
        "task": "django_skipqueue.run",
        "skipqueue-database": "default",
        "id": "skipqueue-default-1-1",
    }
    properties = message.properties
    assert properties["correlation_id"] == "skipqueue-default-1-1"
    assert (properties["delivery_mode"], properties["expiration"]) == (2, "600000")
    assert (properties["content_type"], properties["content_encoding"]) == ("application/json", "utf-8")
    args, kwargs, embed = json.loads(message.body)
    assert wire.job_from_wire(args[0]) == (jobs[0], "default")
    assert (kwargs, embed) == ({}, {})


def test_a_job_larger_than_a_frame_and_a_socket_buffer_is_carried(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier, large = make_connected_carrier(), make_job(1, args=json.dumps(["x" * 9_000_000]))
    carrier.publish([large, make_job(2)])
    assert take_until(carrier, lambda taken: len(taken.confirmed) == 2).confirmed == first_leases(1, 2)
    assert read_job(celery_worker.get()) == large
    celery_worker.send(make_outcome(large))
    [returned_outcome] = take_until(carrier, lambda taken: taken.outcomes).outcomes
    assert returned_outcome.attempt.job == wire.without_large_arguments(large)


def test_a_job_whose_queue_is_gone_is_refused(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier(queues={"pdf": "pdf", "import": "slow"})
    celery_worker.channel.queue_delete("slow")
    carrier.publish([make_job(1), make_job(2, queue_name="import"), make_job(3)])
    taken = take_until(carrier, lambda taken: len(taken.confirmed) + len(taken.refused) == 3)
    assert sorted(taken.confirmed) == first_leases(1, 3)
    assert taken.refused == first_leases(2)


def test_a_job_for_which_the_queue_has_no_room_is_refused(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    arguments = {**topology.CARRIED_QUEUE, "x-max-length": 5}
    celery_worker.channel.queue_declare("pdf", durable=True, auto_delete=False, arguments=arguments)
    create_all_but_pdf(celery_worker)
    carrier = make_connected_carrier(declare=False)
    taken = Taken()
    for number in range(1, 1001):  # the broker notices only after more than five jobs that its queue is full
        carrier.publish([make_job(number)])
        answer = take_until(carrier, lambda taken: taken.confirmed or taken.refused)
        taken.confirmed += answer.confirmed
        taken.refused += answer.refused
        if answer.refused:
            break
    assert taken.refused == first_leases(number)
    assert len(taken.confirmed) == celery_worker.count_messages("pdf") >= 5


def create_all_but_pdf(celery_worker: FakeCeleryWorker) -> None:
    topology.declare(celery_worker.channel, [], "default", create=True)


def test_outcomes_are_delivered_again_until_they_are_acknowledged(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    for number in range(1, 11):
        celery_worker.send(make_outcome(make_job(number)))
    taken = take_until(carrier, lambda taken: len(taken.outcomes) == 10)
    assert [returned.attempt.job for returned in taken.outcomes] == [make_job(number) for number in range(1, 11)]
    first_attempt = taken.outcomes[0].attempt
    assert first_attempt.outcome == Outcome("completed", result='"done"')
    assert (first_attempt.worker, first_attempt.database) == ("celery@here", "default")
    assert first_attempt.duration_ms == pytest.approx(250)
    assert abs(time.monotonic() - first_attempt.ended) < DEADLINE
    # All but the outcomes of the jobs 4, 6, 7, 9 and 10.
    carrier.acknowledge([taken.outcomes[index].delivery for index in (0, 1, 2, 7, 4)])
    carrier.close()
    next_carrier = make_connected_carrier()
    unacknowledged = take_until(next_carrier, lambda taken: len(taken.outcomes) == 5).outcomes
    assert sorted(returned.attempt.job.id for returned in unacknowledged) == [4, 6, 7, 9, 10]
    next_carrier.acknowledge([returned.delivery for returned in unacknowledged])
    next_carrier.close()
    assert celery_worker.count_messages(topology.outcome_queue("default")) == 0


def test_one_call_of_take_reads_everything_that_the_socket_has(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    """Nothing is left to read after the call, so a relay may wait for the file to become readable again."""
    carrier = make_connected_carrier()
    for number in range(1, 501):
        celery_worker.send(make_outcome(make_job(number)))
    wait_until(
        lambda: celery_worker.count_messages(topology.outcome_queue("default")) == 0,
        "the broker has delivered all outcomes",
    )
    taken = take_until(carrier, lambda taken: len(taken.outcomes) == 500)
    assert len(taken.outcomes) == 500
    assert not select.select([carrier.fileno()], [], [], 0)[0]


def test_an_unreadable_outcome_names_its_job(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    celery_worker.send(make_outcome(make_job(3, lease=7)), body=b'[99,"of the future"]')
    celery_worker.send(make_outcome(make_job(3)), body=b"\x80\x04", id="of a stranger")
    celery_worker.send(make_outcome(make_job(4)))
    taken = take_until(carrier, lambda taken: taken.outcomes)
    own_job, foreign_message = taken.jobs
    assert (own_job.ref, own_job.reason, own_job.job) == ((3, 7), "unreadable", None)
    assert (foreign_message.ref, foreign_message.reason, foreign_message.job) == (None, "unreadable", None)
    assert foreign_message.problem.startswith("of a stranger: The message is not JSON")
    carrier.acknowledge([foreign_message.delivery])
    carrier.close()
    next_carrier = make_connected_carrier()
    redelivered = take_until(next_carrier, lambda taken: taken.outcomes and taken.jobs)
    assert [returned.ref for returned in redelivered.jobs] == [(3, 7)]


def test_a_message_is_acknowledged_after_all_its_outcomes(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    outcomes = [wire.encode_outcome(make_outcome(make_job(number)), "default") for number in (1, 2, 3)]
    celery_worker.send_together([*outcomes[:2], outcomes[2]._replace(body=b'[99,"of the future"]')])
    taken = take_until(carrier, lambda taken: taken.outcomes)
    assert [returned.attempt.job.id for returned in taken.outcomes] == [1, 2]
    assert [returned.ref for returned in taken.jobs] == [(3, 1)]
    deliveries = [*(returned.delivery for returned in taken.outcomes), *(returned.delivery for returned in taken.jobs)]
    carrier.acknowledge(deliveries[:1])
    carrier.acknowledge(deliveries[1:2])
    carrier.close()
    next_carrier = make_connected_carrier()
    assert len(take_until(next_carrier, lambda taken: taken.outcomes).outcomes) == 2
    next_carrier.acknowledge(deliveries)
    next_carrier.close()
    celery_worker.send(make_outcome(make_job(4)))
    next_outcomes = take_until(make_connected_carrier(), lambda taken: taken.outcomes).outcomes
    assert [returned.attempt.job.id for returned in next_outcomes] == [4]


def test_a_message_that_names_no_job_is_gone_once_it_is_acknowledged(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    message = amqp.Message(b"\x80\x04", correlation_id="of a stranger")
    celery_worker.channel.basic_publish(message, "", topology.outcome_queue("default"))
    celery_worker.send(make_outcome(make_job(4)))
    taken = take_until(carrier, lambda taken: taken.outcomes)
    carrier.acknowledge([returned.delivery for returned in taken.jobs])
    carrier.close()
    assert len(take_until(make_connected_carrier(), lambda taken: taken.outcomes).jobs) == 0


def test_a_job_that_waits_too_long_comes_back(make_connected_carrier: MakeCarrier) -> None:
    carrier = make_connected_carrier(wait=0.05)
    carrier.publish([make_job(5)])
    taken = take_until(carrier, lambda taken: taken.jobs)
    [returned] = taken.jobs
    assert (returned.ref, returned.reason, returned.job) == (make_job(5).ref, "expired", make_job(5))
    carrier.acknowledge([returned.delivery])


def test_a_job_whose_workers_die_comes_back(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker, broker_url: str
) -> None:
    carrier = make_connected_carrier()
    carrier.publish([make_job(6)])
    for _ in range(topology.DELIVERY_LIMIT + 1):
        with closing(FakeCeleryWorker(broker_url)) as dying:
            dying.get()
    [returned] = take_until(carrier, lambda taken: taken.jobs).jobs
    assert (returned.ref, returned.reason, returned.job) == (make_job(6).ref, "delivery_limit", make_job(6))


def test_a_rejected_job_comes_back_even_if_it_is_unreadable(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    carrier.publish([make_job(7)])
    celery_worker.channel.basic_reject(celery_worker.get().delivery_tag, requeue=False)
    message = amqp.Message(
        b"?", correlation_id="skipqueue-default-8-2", application_headers={topology.DATABASE_HEADER: "default"}
    )
    celery_worker.channel.basic_publish(message, "", "pdf")
    celery_worker.channel.basic_reject(celery_worker.get().delivery_tag, requeue=False)
    taken = take_until(carrier, lambda taken: len(taken.jobs) == 2)
    assert [(returned.ref, returned.reason, returned.job) for returned in taken.jobs] == [
        (make_job(7).ref, "rejected", make_job(7)),
        ((8, 2), "rejected", None),
    ]


def test_dead_letters_of_other_tasks_do_not_reach_the_relay(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    celery_worker.channel.basic_publish(amqp.Message(b"{}"), "", "pdf")
    celery_worker.channel.basic_reject(celery_worker.get().delivery_tag, requeue=False)
    wait_until(lambda: celery_worker.count_messages(topology.FOREIGN) == 1, "the message is kept")
    assert carrier.take() == Taken()


def test_each_database_gets_back_only_its_own_jobs(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker, broker_url: str
) -> None:
    carrier = make_connected_carrier(wait=0.05)
    carrier_of_other_database = CeleryCarrier(
        make_settings(queues={"pdf": "pdf"}, wait=0.05), Celery(broker=broker_url), home="other"
    )
    with closing(carrier_of_other_database):
        carrier_of_other_database.connect()
        carrier.publish([make_job(1)])
        carrier_of_other_database.publish([make_job(2)])
        [returned_to_other] = take_until(carrier_of_other_database, lambda taken: taken.jobs).jobs
        [returned] = take_until(carrier, lambda taken: taken.jobs).jobs
        assert (returned.ref, returned_to_other.ref) == ((1, 1), (2, 1))


def test_the_carrier_sends_celerys_workers_the_ids_of_revoked_jobs(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    queue_of_orders = celery_worker.channel.queue_declare("", exclusive=True).queue
    celery_worker.channel.queue_bind(queue_of_orders, "celery.pidbox")
    carrier.revoke([(1, 1), (2, 5)])
    order = json.loads(celery_worker.get(queue_of_orders).body)
    assert order["method"] == "revoke"
    assert order["arguments"]["task_id"] == ["skipqueue-default-1-1", "skipqueue-default-2-5"]
    carrier.publish([make_job(1)])
    # The broker confirms the revoke too, but the carrier reports only the confirmed job.
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(1)


# Jobs and outcomes that are too large


def test_a_job_that_is_too_large_is_not_sent(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier(max_message_size=70_000)
    large = make_job(2, args=json.dumps(["x" * 70_000]))
    [too_large] = carrier.publish([make_job(1), large, make_job(3)])
    assert (too_large.job, too_large.most) == (large, 70_000)
    assert 70_000 < too_large.size < 71_000
    assert take_until(carrier, lambda taken: len(taken.confirmed) == 2).confirmed == first_leases(1, 3)
    assert carrier.publish([large]) == [too_large]
    assert celery_worker.count_messages("pdf") == 2


def test_a_job_exactly_as_large_as_the_limit_is_sent(
    make_connected_carrier: MakeCarrier, small_message_limit: int
) -> None:
    """The broker measures a message in the same way as the carrier."""
    carrier = make_connected_carrier(max_message_size=small_message_limit)
    [too_large] = carrier.publish([make_job(1, args="x" * small_message_limit)])
    # The limit without the bytes of the message that are not arguments.
    room_left = small_message_limit - (too_large.size - small_message_limit)
    assert carrier.publish([make_job(1, args="x" * room_left)]) == []
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(1)
    [too_large] = carrier.publish([make_job(2, args="x" * (room_left + 1))])
    assert too_large.size == small_message_limit + 1


def test_a_job_that_the_broker_has_refused_for_its_size_is_not_sent_again(
    make_connected_carrier: MakeCarrier, small_message_limit: int
) -> None:
    carrier, large = make_connected_carrier(), make_job(2, args="x" * small_message_limit)
    assert carrier.publish([make_job(1), large]) == []
    with pytest.raises(CarrierUnreachable, match=r"larger than configured max size 100000"):
        take_until(carrier, lambda _: False)
    carrier.close()
    carrier.connect()
    [too_large] = carrier.publish([large, make_job(3)])
    assert (too_large.job, too_large.most) == (large, small_message_limit)
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(3)


def test_the_broker_keeps_outcomes_that_exceed_the_relays_memory(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome_size = 500_000
    monkeypatch.setattr("django_skipqueue.contrib.celery.celery_carrier.MOST_DELIVERED", 4 * outcome_size)
    monkeypatch.setattr("django_skipqueue.contrib.celery.rabbitmq.HEARTBEAT_CHECK_SECONDS", 0.0)
    carrier = make_connected_carrier()
    large_outcome = Outcome("completed", result=f'"{"x" * outcome_size}"')
    for number in range(1, 21):
        celery_worker.send(make_outcome(make_job(number))._replace(outcome=large_outcome))
    wait_until(
        lambda: celery_worker.count_messages(topology.outcome_queue("default")) == 0,
        "the broker has delivered all outcomes",
    )
    for first_id in range(1, 21, 4):
        outcomes = take_until(carrier, lambda taken: len(taken.outcomes) >= 4).outcomes
        assert [returned.attempt.job.id for returned in outcomes] == list(range(first_id, first_id + 4))
        assert not select.select([carrier.fileno()], [], [], 0)[0], "nothing wakes the relay"
        carrier.publish([make_job(first_id)])
        assert take_until(carrier, lambda taken: taken.confirmed) == Taken(confirmed=first_leases(first_id)), (
            "the carrier still publishes"
        )
        carrier.acknowledge([returned.delivery for returned in outcomes])


# Broken connections and wrong settings


def test_a_queue_with_other_arguments_is_explained(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    celery_worker.channel.queue_declare("pdf", durable=True, auto_delete=False)
    with pytest.raises(CarrierMisconfigured, match=r"'pdf'.*'x-queue-type': 'quorum'.*\"DECLARE\": False"):
        make_connected_carrier()


def test_without_declare_a_missing_queue_is_explained(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    create_all_but_pdf(celery_worker)
    with pytest.raises(CarrierMisconfigured, match=r"no queue 'pdf'.*x-delivery-limit"):
        make_connected_carrier(declare=False)


def test_a_node_that_is_down_is_reported_in_the_brokers_words() -> None:
    class Channel:
        def exchange_declare(self, *_: Any, **__: Any) -> None:
            raise amqp.NotFound("home node 'rabbit@one' of durable queue is down or inaccessible")

    with pytest.raises(CarrierMisconfigured) as caught:
        topology.declare(Channel(), [], "default", create=True)
    assert "The broker says: home node 'rabbit@one'" in str(caught.value)
    assert "DECLARE" not in str(caught.value)


def test_an_error_names_the_broker_and_not_its_password(make_connected_carrier: MakeCarrier, broker_url: str) -> None:
    carrier = make_connected_carrier(url="amqp://anna:secret@127.0.0.1:1/shop", connect=False)
    with pytest.raises(CarrierUnreachable, match=r"\(broker 127\.0\.0\.1:1, vhost 'shop'\)") as caught:
        carrier.connect()
    assert "secret" not in str(caught.value)
    carrier_with_wrong_password = make_connected_carrier(
        url=broker_url.replace("guest:guest", "guest:secret"), connect=False
    )
    with pytest.raises(CarrierMisconfigured, match=r"\(broker 127\.0\.0\.1:\d+, vhost 'test") as caught_refusal:
        carrier_with_wrong_password.connect()
    assert "secret" not in str(caught_refusal.value)


def test_a_refused_login_is_explained(make_connected_carrier: MakeCarrier, broker_url: str) -> None:
    with pytest.raises(CarrierMisconfigured, match="refuses"):
        make_connected_carrier(url=broker_url.replace("guest:guest", "guest:wrong"))


def test_a_broker_that_is_not_rabbitmq_is_explained(make_connected_carrier: MakeCarrier) -> None:
    with pytest.raises(CarrierMisconfigured, match="needs RabbitMQ"):
        make_connected_carrier(url="memory://")


def test_an_unreachable_broker_raises_carrier_unreachable(make_connected_carrier: MakeCarrier) -> None:
    carrier = make_connected_carrier(url="amqp://guest:guest@127.0.0.1:1/", connect=False)
    with pytest.raises(CarrierUnreachable):
        carrier.connect()
    carrier.close()


@pytest.mark.parametrize("link", ["publishing", "consuming"])
def test_every_method_raises_carrier_unreachable_after_a_broken_connection(
    make_connected_carrier: MakeCarrier, link: str
) -> None:
    carrier = make_connected_carrier()
    getattr(carrier, link).connection.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(CarrierUnreachable):
        take_until(carrier, lambda _: False)
    carrier.close()
    for method in (carrier.take, carrier.fileno, lambda: carrier.publish([make_job(1)])):
        with pytest.raises(CarrierUnreachable):
            method()
    carrier.connect()
    carrier.publish([make_job(1)])
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(1)


def test_a_deleted_outcome_queue_breaks_the_connection(
    make_connected_carrier: MakeCarrier, celery_worker: FakeCeleryWorker
) -> None:
    carrier = make_connected_carrier()
    celery_worker.channel.queue_delete(topology.outcome_queue("default"))
    with pytest.raises(CarrierUnreachable, match="ConsumerCancelled"):
        take_until(carrier, lambda _: False)
    carrier.close()
    carrier.connect()
    assert carrier.take() == Taken()


def test_the_error_of_a_closed_channel_has_the_reason_of_the_broker(make_connected_carrier: MakeCarrier) -> None:
    carrier = make_connected_carrier()
    carrier.deliveries.add(99)
    carrier.acknowledge([99])
    with pytest.raises(CarrierUnreachable, match="PRECONDITION_FAILED - unknown delivery tag 99"):
        wait_until(lambda: carrier.take().outcomes)


def test_a_broker_that_confirms_nothing_counts_as_unreachable(
    make_connected_carrier: MakeCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = make_connected_carrier()
    monkeypatch.setattr("django_skipqueue.contrib.celery.rabbitmq.LONGEST_CONFIRM_SECONDS", -1.0)
    monkeypatch.setattr(AmqpLink, "receive", lambda *_: None)
    carrier.publish([make_job(1)])
    with pytest.raises(CarrierUnreachable, match="not confirmed"):
        carrier.take()


def test_a_carrier_counts_as_blocked_until_its_broker_reads_again(
    rabbitmq: RabbitMQ, make_connected_carrier: MakeCarrier
) -> None:
    carrier = make_connected_carrier()
    rabbitmq.control("set_vm_memory_high_watermark", "0")  # the broker now lacks memory, so it stops reading
    try:
        carrier.publish([make_job(1)])
        wait_until(lambda: is_blocked_after_take(carrier), "the broker says that it is blocked")
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")  # the default
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(1)
    assert not carrier.is_blocked


def test_a_blocked_broker_delivers_and_takes_acknowledgements(
    rabbitmq: RabbitMQ,
    make_connected_carrier: MakeCarrier,
    celery_worker: FakeCeleryWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker sends the next outcome only after it has read the acknowledgement of the last outcome."""
    monkeypatch.setattr("django_skipqueue.contrib.celery.celery_carrier.MOST_PREFETCHED_DELIVERIES", 1)
    carrier = make_connected_carrier()
    for number in range(1, 11):
        celery_worker.send(make_outcome(make_job(number)))
    rabbitmq.control("set_vm_memory_high_watermark", "0")  # the broker now lacks memory, so it stops reading
    try:
        carrier.publish([make_job(99)])
        outcomes = take_until(carrier, lambda taken: taken.outcomes and carrier.is_blocked).outcomes
        carrier.revoke([(1, 1)])  # a revoke is a message too
        while len(outcomes) < 10:
            carrier.acknowledge([outcomes[-1].delivery])
            outcomes += take_until(carrier, lambda taken: taken.outcomes).outcomes
        assert [returned.attempt.job.id for returned in outcomes] == list(range(1, 11))
        assert carrier.is_blocked
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")  # the default
    assert take_until(carrier, lambda taken: taken.confirmed).confirmed == first_leases(99)


def test_confirmed_jobs_outlive_a_killed_broker(
    rabbitmq: RabbitMQ, make_connected_carrier: MakeCarrier, broker_url: str
) -> None:
    carrier = make_connected_carrier()
    carrier.publish([make_job(number) for number in range(1, 51)])
    take_until(carrier, lambda taken: len(taken.confirmed) == 50)
    with closing(FakeCeleryWorker(broker_url)) as first_worker:
        first_worker.send(make_outcome(finished_job := make_job(99)))
        wait_until(lambda: carrier.take().outcomes, "the outcome came")
    time.sleep(1)  # RabbitMQ 3.10 may lose a quorum queue that is younger than a second
    rabbitmq.kill()
    with pytest.raises(CarrierUnreachable):
        take_until(carrier, lambda _: False)
    carrier.close()
    rabbitmq.start()
    wait_until(lambda: try_to_connect(carrier), "the broker is back")
    assert take_until(carrier, lambda taken: taken.outcomes).outcomes[0].attempt.job == finished_job
    with closing(FakeCeleryWorker(broker_url)) as next_worker:
        assert wait_until(lambda: next_worker.count_messages("pdf")) == 50


def try_to_connect(carrier: CeleryCarrier) -> bool:
    try:
        carrier.connect()
    except (CarrierUnreachable, CarrierMisconfigured):
        carrier.close()
        return False
    return True


def test_publishing_to_a_blocked_broker_does_not_block_the_relay(
    rabbitmq: RabbitMQ, make_connected_carrier: MakeCarrier
) -> None:
    """The broker has stopped reading, and the jobs are larger than the buffers of the sockets."""
    carrier = make_connected_carrier()
    rabbitmq.control("set_vm_memory_high_watermark", "0")  # the broker now lacks memory, so it stops reading
    try:
        started = time.monotonic()
        carrier.publish([make_job(number, args=json.dumps(["x" * 200_000])) for number in range(100)])
        wait_until(lambda: is_blocked_after_take(carrier), "the broker says that it is blocked")
        assert time.monotonic() - started < STEP_SECONDS
        assert carrier.waiting
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")  # the default
    assert len(take_until(carrier, lambda taken: len(taken.confirmed) == 100).confirmed) == 100


def test_closing_a_connection_that_the_broker_has_closed_does_not_open_it_again(
    make_connected_carrier: MakeCarrier, rabbitmq: RabbitMQ
) -> None:
    carrier = make_connected_carrier()
    connections = [link.connection for link in carrier.links]
    rabbitmq.control("close_all_connections", "--vhost", connections[0].virtual_host, "enough")
    with pytest.raises(CarrierUnreachable, match="enough"):
        take_until(carrier, lambda _: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # py-amqp would warn, and connect, if `sock` of a closed connection were read
        carrier.close()
    assert not any(connection.connected for connection in connections)


def test_take_returns_the_confirms_that_arrived_before_the_connection_broke(
    make_connected_carrier: MakeCarrier, rabbitmq: RabbitMQ
) -> None:
    carrier = make_connected_carrier()
    carrier.publish([make_job(1), make_job(2)])
    wait_until(lambda: select.select([carrier.fileno()], [], [], 0)[0], "the confirms have arrived")
    rabbitmq.control("close_all_connections", "--vhost", carrier.publishing.connection.virtual_host, "enough")
    assert sorted(carrier.take().confirmed) == first_leases(1, 2)
    with pytest.raises(CarrierUnreachable, match="enough"):
        take_until(carrier, lambda _: False)


def test_take_returns_the_confirms_that_arrived_before_a_send_failed(make_connected_carrier: MakeCarrier) -> None:
    carrier = make_connected_carrier()
    carrier.publish([make_job(1)])
    wait_until(lambda: select.select([carrier.fileno()], [], [], 0)[0], "the confirm has arrived")
    carrier.publishing.connection.sock.shutdown(socket.SHUT_WR)
    carrier.publish([make_job(number) for number in range(2, 100)])
    assert carrier.take().confirmed == first_leases(1)
    with pytest.raises(CarrierUnreachable):
        take_until(carrier, lambda _: False)


def test_wrong_settings_of_a_carrier_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = CarrierSettings(name="celery", app="tests.nowhere.app", queues={"pdf": "pdf"})
    with pytest.raises(CarrierMisconfigured, match=r"tests\.nowhere\.app"):
        make_carrier(settings, "default")
    with pytest.raises(CarrierMisconfigured, match="not a Celery app"):
        make_carrier(CarrierSettings(name="celery", app="json.dumps", queues={}), "default")
    monkeypatch.setitem(sys.modules, "django_skipqueue.contrib.celery.celery_carrier", None)
    with pytest.raises(CarrierMisconfigured, match=r"django-skipqueue\[celery\]"):
        make_carrier(settings, "default")
