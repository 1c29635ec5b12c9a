"""A paused queue: no worker claims its jobs until an operator resumes the queue or the pause ends by itself."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.dispatch import Signal

from django_skipqueue import signals
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job, Queue
from django_skipqueue.queue.queues import paused_queues
from django_skipqueue.queue.store import Store

from ..app.rows import make_job, make_worker, settle_and_claim
from ..app.sessions import Session
from .test_notify import NotificationListener

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def claimed_ids(*queue_names: str, limit: int = 100) -> list[int]:
    claimed_jobs = Job.objects.claim(queue_names=queue_names, limit=limit, worker_id="w")
    return [job.pk for job in claimed_jobs]


def end_pause(name: str) -> None:
    """Make the pause end by itself, as if its time were over."""
    Queue.objects.filter(name=name).update(paused_until=Now())


def test_jobs_of_a_paused_queue_are_not_claimed() -> None:
    make_job(queue_name="mail")
    other_job = make_job(queue_name="other")
    Queue.pause("mail")
    assert claimed_ids("mail", "other") == [other_job.pk]
    assert settle_and_claim([], queue_names=["mail"], limit=1, worker_id="w")[1] == []


def test_pausing_an_unknown_queue_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    make_job(queue_name="mail")
    make_worker(queues=["served"])
    for name in ("mail", "default", "served", "mial"):
        Queue.pause(name)
    [line] = [message for message in caplog.messages if "unknown" in message]
    assert line.startswith('queue unknown queue=mial hint="no task and no unfinished job has this queue" known=')
    assert "mail" in line
    assert Queue.objects.paused().count() == 4


def test_jobs_of_a_resumed_queue_are_claimed() -> None:
    job = make_job(queue_name="mail")
    Queue.pause("mail")
    assert Queue.resume("mail")
    assert claimed_ids("mail") == [job.pk]


def test_resume_returns_whether_the_queue_was_paused() -> None:
    assert not Queue.resume("mail")
    Queue.pause("mail")
    assert Queue.resume("mail")
    assert not Queue.resume("mail")


def test_a_pause_with_a_duration_ends_by_itself() -> None:
    job = make_job(queue_name="mail")
    Queue.pause("mail", for_=timedelta(hours=1))
    assert claimed_ids("mail") == []
    end_pause("mail")
    assert not Queue.resume("mail"), "the pause is over already"
    assert claimed_ids("mail") == [job.pk]


def test_the_times_of_a_pause_are_taken_from_the_databases_clock() -> None:
    Queue.pause("mail", for_=timedelta(minutes=15), by="ann", reason="no answer")
    queue: Any = Queue.objects.annotate(now=Now()).get()
    assert timedelta(minutes=14) < queue.paused_until - queue.now <= timedelta(minutes=15)
    assert queue.paused_until - queue.paused_at == timedelta(minutes=15)
    assert (queue.paused_by, queue.reason, str(queue)) == ("ann", "no answer", "mail")


def test_a_second_pause_replaces_the_first_pause() -> None:
    Queue.pause("mail", for_=timedelta(minutes=15), by="ann", reason="no answer")
    Queue.pause("mail", by="bob")
    queue = Queue.objects.get()
    assert (queue.paused_until, queue.paused_by, queue.reason) == (None, "bob", "")


def test_the_queues_keep_their_order_while_one_of_them_is_paused() -> None:
    names = [f"queue {number}" for number in range(20)]
    job_ids = {name: make_job(queue_name=name).pk for name in names}
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_queue (name, paused_at)"
            " SELECT 'paused ' || number, now() FROM generate_series(1, 5000) AS number"
        )
        cursor.execute("ANALYZE skipqueue_queue")
    Queue.pause(names[7])
    shuffled_names = sorted(names, key=lambda name: hash((name, 1)))
    assert claimed_ids(*shuffled_names, limit=10) == [job_ids[name] for name in shuffled_names if name != names[7]][:10]


def test_a_claim_locks_no_job_of_a_paused_queue(session: Callable[[], Session]) -> None:
    make_job(queue_name="mail")
    Queue.pause("mail")

    @transaction.atomic
    def lock_all_jobs() -> int:
        return len(Job.objects.select_for_update(nowait=True))

    with transaction.atomic():
        assert claimed_ids("mail") == []
        assert session()(lock_all_jobs) == 1


def test_a_pause_holds_from_its_commit_on(session: Callable[[], Session]) -> None:
    job = make_job(queue_name="mail")
    with transaction.atomic():
        Queue.pause("mail")
        assert session()(claimed_ids, "mail") == [job.pk]
    make_job(queue_name="mail")
    assert session()(claimed_ids, "mail") == []


def test_queues_with_jobs_leaves_paused_queues_out() -> None:
    for name in ("a", "b", "c"):
        make_job(queue_name=name)
    Queue.pause("a")
    assert store.queues_with_jobs(limit=1) == ["b"]
    assert store.queues_with_jobs() == ["b", "c"]
    assert store.queues_with_jobs(with_paused=True) == ["a", "b", "c"]


def test_paused_queues_lists_queues_that_are_still_paused() -> None:
    for name in ("a", "b", "c"):
        Queue.pause(name, for_=timedelta(hours=1))
    end_pause("a")
    Queue.resume("b")
    assert paused_queues(store) == ["c"]
    assert [queue.name for queue in Queue.objects.paused()] == ["c"]


@pytest.mark.parametrize("name", ["", " mail", "a,b", "x" * 1001, 7])
def test_an_invalid_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption):
        Queue.pause(name)
    with pytest.raises(InvalidOption):
        Queue.resume(name)


@pytest.mark.parametrize("for_", [60, timedelta(0), timedelta(seconds=-1), timedelta(days=4000)])
def test_a_pause_for_an_invalid_time_is_refused(for_: Any) -> None:
    with pytest.raises(InvalidOption, match="for_ must be a timedelta"):
        Queue.pause("mail", for_=for_)


def test_by_and_reason_of_a_pause_must_be_strings() -> None:
    with pytest.raises(InvalidOption, match="by must be a str"):
        Queue.pause("mail", by=7)  # type: ignore[arg-type]


def test_a_resume_notifies_the_workers_and_the_supervisors() -> None:
    worker_listener = NotificationListener("skipqueue")
    supervisor_listener = NotificationListener("skipqueue_supervisors")
    with worker_listener.connection, supervisor_listener.connection:
        Queue.pause("mail")
        assert (worker_listener.payloads(), supervisor_listener.payloads()) == ([], [",queues"])
        Queue.resume("mail")
        assert (worker_listener.payloads(), supervisor_listener.payloads()) == (["mail"], [",queues", ",gates"])


def test_a_pause_and_a_resume_are_signalled_and_logged(
    record_signal: Callable[[Signal], list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    paused_signals, resumed_signals = record_signal(signals.queue_paused), record_signal(signals.queue_resumed)
    caplog.set_level(logging.INFO, "django_skipqueue")
    Queue.pause("mail", for_=timedelta(hours=1), by="ann", reason="no answer")
    Queue.resume("mail", by="bob")
    Queue.resume("mail", by="bob")
    until = paused_signals[0].pop("until")
    assert [{**event, "signal": None} for event in paused_signals] == [
        {"signal": None, "sender": "mail", "database": "default", "by": "ann", "reason": "no answer"}
    ]
    assert [{**event, "signal": None} for event in resumed_signals] == [
        {"signal": None, "sender": "mail", "database": "default", "by": "bob"}
    ]
    assert caplog.messages == [
        f'queue paused queue=mail until="{until.isoformat(" ", "seconds")}" by=ann reason="no answer"',
        "queue resumed queue=mail by=bob",
    ]
