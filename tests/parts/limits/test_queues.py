"""Limits of whole queues: to which jobs they apply, and how they change at run time."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_skipqueue import Batch, conf
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.limits.queues import block_surplus
from django_skipqueue.queue.enqueue import with_queue_limits
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import EncodedCall

from ...app import jobs
from ...app.limit_rows import exchange
from ...app.limits.jobs import halting_sequence, two_per_account
from ...harness.processes import statuses

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

noop_in_mail = jobs.noop.using(queue_name="mail")
MAIL_KEY = "queue:mail"


@pytest.fixture(autouse=True)
def queue_limits(settings: Any) -> None:
    """The queue `mail` runs three jobs at once. The limit of the queue `later` is set by a test."""
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"concurrency": 3}, "later": {"concurrency": None}}}


def settle_all() -> None:
    """Settle the running jobs and admit, as a worker does."""
    running = list(Job.objects.running().values_list("pk", "lease"))
    settlements = [Settlement(id, lease, COMPLETED) for id, lease in running]
    exchange(store, settlements, queue_names=["mail"], limit=0, limited=[id for id, _ in running])


def claim_ids(queue: str = "mail", limit: int = 100) -> list[int]:
    """The ids of the jobs that a worker claims."""
    return [job.id for job in store.claim(queue_names=[queue], limit=limit, worker_id="w")]


def test_jobs_beyond_the_limit_of_their_queue_wait_until_one_ends() -> None:
    ids = noop_in_mail.defer_many([()] * 5)
    assert claim_ids() == list(ids[:3])
    settle_all()
    assert claim_ids() == list(ids[3:])


def test_a_deferred_job_has_the_key_of_its_queue() -> None:
    deferred = noop_in_mail.defer()
    assert (deferred.limit_key, deferred.limit_kind, deferred.capacity) == (MAIL_KEY, "concurrency", 3)
    assert Job.objects.get().limit_key == MAIL_KEY
    assert Job.objects.enqueue("t", queue_name="mail").limit_key == MAIL_KEY
    with Batch(on_finish=noop_in_mail.s()) as batch:
        noop_in_mail.defer()
    assert set(Job.objects.values_list("limit_key", flat=True)) == {MAIL_KEY}
    assert batch


def test_jobs_of_a_queue_without_a_limit_have_no_limit_key() -> None:
    assert jobs.noop.defer().limit_key is None
    call = EncodedCall("[]", "{}")
    assert with_queue_limits("default", [call]) == [call]


def test_a_jobs_own_limit_replaces_the_limit_of_its_queue() -> None:
    two_per_account.using(queue_name="mail").defer_many([("a",)] * 2)
    halting_sequence.using(queue_name="mail").defer("a")
    noop_in_mail.defer_many([()] * 4)
    assert len(claim_ids()) == 6
    assert Job.objects.filter(limit_key=MAIL_KEY).count() == 4


def test_a_queue_whose_setting_is_none_admits_all_jobs_until_it_is_limited() -> None:
    noop_in_later = jobs.noop.using(queue_name="later")
    noop_in_later.defer_many([()] * 5)
    assert statuses() == {"queued": 5}
    assert len(claim_ids("later", limit=2)) == 2
    Queue.limit("later", 1)
    assert block_surplus(store) == 3
    assert statuses() == {"running": 2, "blocked": 3}
    noop_in_later.defer()
    sweep_gates(store)
    assert statuses() == {"running": 2, "blocked": 4}


def test_queued_jobs_beyond_a_new_limit_are_blocked_in_batches_the_first_to_run_last() -> None:
    noop_in_later = jobs.noop.using(queue_name="later")
    first = noop_in_later.using(priority=5).defer().pk
    noop_in_later.defer_many([()] * 5)
    Queue.limit("later", 1)
    assert [block_surplus(store, limit=3) for _ in range(3)] == [3, 2, 0]
    assert claim_ids("later") == [first]


def test_a_raised_limit_admits_at_once_and_a_lowered_limit_waits_for_running_jobs() -> None:
    noop_in_mail.defer_many([()] * 10)
    assert len(claim_ids()) == 3
    Queue.limit("mail", 5)
    assert statuses() == {"running": 3, "queued": 2, "blocked": 5}
    Queue.limit("mail", 1)
    block_surplus(store)
    assert statuses() == {"running": 3, "blocked": 7}
    sweep_gates(store)
    assert claim_ids() == []
    settle_all()
    assert len(claim_ids()) == 1
    Queue.limit("mail", None)
    assert statuses() == {"completed": 3, "running": 1, "queued": 6}


def test_the_limit_of_the_settings_applies_again_after_an_operators_limit() -> None:
    Queue.limit("mail", 1)
    noop_in_mail.defer_many([()] * 5)
    assert statuses() == {"queued": 1, "blocked": 4}
    Queue.limit_by_settings("mail")
    assert statuses() == {"queued": 3, "blocked": 2}


def test_a_changed_limit_is_rolled_back_with_its_transaction() -> None:
    noop_in_mail.defer_many([()] * 5)
    with transaction.atomic():
        Queue.limit("mail", 5)
        transaction.set_rollback(True)
    sweep_gates(store)
    assert statuses() == {"queued": 3, "blocked": 2}


def test_pausing_a_queue_keeps_its_limit_and_limiting_it_keeps_the_pause() -> None:
    Queue.limit("mail", 2)
    Queue.pause("mail")
    assert Queue.objects.get().concurrency == 2
    Queue.limit("mail", 4)
    assert Queue.objects.paused().count() == 1
    Queue.resume("mail")
    assert Queue.objects.get().concurrency == 4


def test_a_job_that_changes_its_queue_changes_its_limit() -> None:
    noop_in_mail.defer_many([()] * 3)
    job = jobs.noop.defer()
    with_limit = two_per_account.defer("a")
    Job.objects.filter(pk__in=[job.pk, with_limit.pk]).change_queue("mail")
    job.refresh_from_db()
    assert (job.status, job.limit_key, job.limit_kind, job.capacity) == ("blocked", MAIL_KEY, "concurrency", 3)
    with_limit.refresh_from_db()
    assert with_limit.status == "queued"
    assert with_limit.limit_key
    assert with_limit.limit_key.startswith("limit:")
    sweep_gates(store)
    assert Job.objects.filter(limit_key=MAIL_KEY).queued().count() == 3
    job.change_queue("other")
    job.refresh_from_db()
    assert (job.status, job.limit_key, job.limit_kind, job.capacity) == ("queued", None, None, None)


def test_a_scheduled_job_that_changes_its_queue_stays_scheduled() -> None:
    scheduled_job = jobs.noop.using(run_after=timedelta(hours=1)).defer()
    scheduled_job.change_queue("mail")
    scheduled_job.refresh_from_db()
    assert (scheduled_job.status, scheduled_job.limit_key) == ("scheduled", MAIL_KEY)


def test_a_job_that_waits_for_another_job_still_waits_in_its_new_queue() -> None:
    first = jobs.noop.defer()
    second = jobs.noop.using(after=[first]).defer()
    second.change_queue("mail")
    second.change_queue("default")
    second.refresh_from_db()
    assert second.status == "blocked"


def test_a_queue_limit_with_an_invalid_value_is_refused() -> None:
    for value in (0, -1, 10_001, True, "3", 2.5):
        with pytest.raises(InvalidOption, match="concurrency must be an integer from 1 to 10,000, or None"):
            Queue.limit("mail", value)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        Queue.limit("a,b", 3)
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("queues", "expected_problem"),
    [
        (("mail",), "must be a dict of limits by the name of a queue"),
        ({"a,b": {}}, "a key is the name of a queue"),
        ({"mail": 20}, "['mail'] must be a dict, not 20"),
        ({"mail": {"concurrency": 0}}, "['mail']['concurrency'] must be an integer from 1 to 10,000, or None"),
        ({"mail": {"speed": 1}}, "has no key 'speed'. It knows concurrency"),
    ],
)
def test_an_invalid_setting_of_queue_limits_is_reported(settings: Any, queues: Any, expected_problem: str) -> None:
    settings.SKIPQUEUE = {"QUEUES": queues}
    assert expected_problem in " ".join(conf.problems())


def test_a_queue_that_the_settings_do_not_name_cannot_be_limited_or_rated() -> None:
    with pytest.raises(InvalidOption, match=r"""'default': \{"concurrency": None\} to SKIPQUEUE\["QUEUES"\]"""):
        Queue.limit("default", 3)
    with pytest.raises(InvalidOption, match=r"""'mail': \{"rate": None\}"""):
        Queue.rate("mail", "3/s")
    assert not Queue.objects.exists()


def test_a_queue_that_was_limited_can_be_limited_after_the_settings_have_dropped_it(settings: Any) -> None:
    Queue.limit("mail", 3)
    settings.SKIPQUEUE = {}
    Queue.limit("mail", 2)
    assert Queue.objects.get().concurrency == 2
