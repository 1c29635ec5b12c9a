"""A queued job that no worker has claimed gives its permit or its token to a job that should start before it."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Count

from django_skipqueue.models import Job, Queue, RateBucket
from django_skipqueue.parts.keyed.services import HELD_UP_SECONDS
from django_skipqueue.parts.limits.admit import admit_keys, blocked_keys
from django_skipqueue.parts.limits.services import pass_permits_on
from django_skipqueue.parts.rates.admit import admit_rate_keys, blocked_rates
from django_skipqueue.parts.rates.services import pass_tokens_on
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Admit

from ...app.limit_rows import make_keyed
from ...app.limits.jobs import (
    continuing_sequence,
    halting_sequence,
    one_at_a_time,
    one_per_number,
    shared_fairly,
    two_per_account,
)
from ...app.limits.rates.jobs import rated_and_limited
from ...app.rates.jobs import shares_rate
from ...app.rows import make_job, make_worker, multiply
from ...app.sessions import Session, connect
from ...harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
store = Store("default")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pass_permits_and_tokens_on() -> Callable[..., None]:
    """Run the services that pass permits and tokens on, once, as a supervisor does at the given second."""
    services = [pass_permits_on(store), pass_tokens_on(store)]

    def run_services(at: float = 0.0) -> None:
        for service in services:
            service.run(at)

    return run_services


@pytest.fixture
def payloads_to_supervisors() -> Iterator[Callable[[], list[str]]]:
    """The payloads that supervisors have received since the last call."""
    with connect() as listening:
        listening.execute("LISTEN skipqueue_supervisors")

        def payloads() -> list[str]:
            listening.execute("SELECT")  # the answer to this statement comes after the notifications
            return [notification.payload for notification in listening.notifies(timeout=0)]

        yield payloads


def queued_ids() -> set[int]:
    return set(Job.objects.filter(status="queued").values_list("pk", flat=True))


def claim_exactly(limit: int = 1, queue_name: str = "default") -> None:
    assert len(store.claim(queue_names=[queue_name], limit=limit, worker_id="w")) == limit


@pytest.mark.parametrize("task", [two_per_account, shared_fairly], ids=["limit", "fair"])
def test_jobs_of_higher_priority_get_the_permits_of_the_unclaimed_jobs_that_would_start_last(
    task: Any, pass_permits_and_tokens_on: Callable[..., None]
) -> None:
    make_worker()
    low, lowest = (task.using(priority=priority).defer("a").pk for priority in (-1, -2))
    urgent = task.using(priority=5).defer("a").pk
    assert queued_ids() == {low, lowest}
    pass_permits_and_tokens_on()
    assert queued_ids() == {low, urgent}
    higher = [task.using(priority=6).defer("a").pk for _ in range(3)]
    pass_permits_and_tokens_on()
    assert queued_ids() == {*higher[:2]}, "the worst jobs are put back, and the oldest of the best jobs are admitted"
    pass_permits_and_tokens_on()
    assert queued_ids() == {*higher[:2]}


def test_a_running_job_keeps_its_permit(pass_permits_and_tokens_on: Callable[..., None]) -> None:
    make_worker()
    first, second = (two_per_account.using(priority=-1).defer("a").pk for _ in range(2))
    claim_exactly()
    urgent = [two_per_account.using(priority=5).defer("a").pk for _ in range(2)]
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent[0]}
    assert Job.objects.get(pk=first).status == "running"
    assert Job.objects.get(pk=second).status == "blocked"


def test_a_job_that_is_being_claimed_keeps_its_permit(pass_permits_and_tokens_on: Callable[..., None]) -> None:
    make_worker()
    first, second = (two_per_account.using(priority=-1).defer("a").pk for _ in range(2))
    urgent = [two_per_account.using(priority=5).defer("a").pk for _ in range(2)]
    claiming_session = Session()
    claiming_session.begin()
    claiming_session(lambda: Store("default").claim(queue_names=["default"], limit=1, worker_id="w"))
    pass_permits_and_tokens_on()
    assert queued_ids() == {first, urgent[0]}, (
        "one job is put back, and one is admitted; the second worker has not claimed its job yet"
    )
    claiming_session.commit()
    claiming_session.close()
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent[0]}
    assert Job.objects.get(pk=first).status == "running"
    assert Job.objects.get(pk=second).status == "blocked"


def test_while_another_session_has_locked_the_key_no_permit_is_passed_on(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    low = one_at_a_time.using(priority=-1).defer().pk
    urgent = one_at_a_time.using(priority=5).defer().pk
    other_session = Session()
    other_session.begin()
    other_session(lambda: admit_keys(Store("default"), [Job.objects.get(pk=low).limit_key or ""]))
    pass_permits_and_tokens_on()
    assert queued_ids() == {low}
    other_session.rollback()
    other_session.close()
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent}


def test_a_job_that_waits_for_its_rate_gives_its_permit_up_first(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    token_holders = [rated_and_limited.defer(account).pk for account in "xy"]  # both tokens are taken
    low = rated_and_limited.using(priority=-1).defer("a").pk
    assert Job.objects.get(pk=low).gate == "rate"
    urgent = rated_and_limited.using(priority=5).defer("a").pk
    pass_permits_and_tokens_on()
    assert Job.objects.get(pk=low).gate == "limit"
    assert Job.objects.get(pk=urgent).gate == "rate" or urgent in queued_ids()
    assert len(queued_ids()) == len(token_holders)


def test_an_unclaimed_job_gives_its_token_to_a_job_of_higher_priority(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    low = shares_rate.using(priority=-1).defer().pk
    urgent = shares_rate.using(priority=5).defer().pk
    assert queued_ids() == {low}
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent}


def test_a_token_goes_to_another_job_of_the_limit_that_has_the_permit(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    low = rated_and_limited.using(priority=-1).defer("a").pk
    rated_and_limited.using(priority=-2).defer("b")
    urgent = rated_and_limited.using(priority=5).defer("c").pk
    pass_permits_and_tokens_on()
    assert queued_ids() == {low, urgent}
    put_back = Job.objects.get(status="blocked")
    assert put_back.priority == -2
    assert put_back.gate == "rate", "the job has the permit and waits only for a token"


def test_a_sequence_keeps_its_order_whatever_the_priority_and_the_queue(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    first = halting_sequence.using(priority=-5).defer("o").pk
    halting_sequence.using(priority=5).defer("o")
    pass_permits_and_tokens_on()
    assert queued_ids() == {first}
    Queue.pause("default")
    halting_sequence.using(queue_name="other").defer("o")
    pass_permits_and_tokens_on()
    assert queued_ids() == {first}


def test_an_earlier_job_of_a_sequence_that_is_retried_by_hand_comes_first(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker()
    first_job = continuing_sequence.defer("o")
    claim_exactly()
    # as if the job had failed before its task began
    Job.objects.filter(pk=first_job.pk).update(status="failed", finished_at=first_job.enqueued_at, started_at=None)
    second_job = continuing_sequence.defer("o").pk
    assert queued_ids() == {second_job}
    Job.objects.get(pk=first_job.pk).retry()
    pass_permits_and_tokens_on()
    assert queued_ids() == {first_job.pk}


def test_a_job_of_a_sequence_that_has_begun_is_not_put_back(pass_permits_and_tokens_on: Callable[..., None]) -> None:
    make_worker()
    first = continuing_sequence.defer("o")
    claim_exactly()
    # as if the job had failed before its task began
    Job.objects.filter(pk=first.pk).update(status="failed", finished_at=first.enqueued_at, started_at=None)
    begun = continuing_sequence.defer("o").pk
    Job.objects.filter(pk=begun).update(attempts=1)
    Job.objects.get(pk=first.pk).retry()
    pass_permits_and_tokens_on()
    assert queued_ids() == {begun}


@pytest.mark.parametrize("task", [two_per_account, shares_rate], ids=["permits", "tokens"])
def test_jobs_of_a_paused_queue_give_permits_and_tokens_to_jobs_of_a_served_queue(
    task: Any, pass_permits_and_tokens_on: Callable[..., None]
) -> None:
    make_worker()
    args = ["a"] if task is two_per_account else []
    queued_bulk = {task.using(queue_name="bulk").defer(*args).pk for _ in range(2)} & queued_ids()
    urgent = task.using(queue_name="urgent").defer(*args).pk
    pass_permits_and_tokens_on()
    assert queued_ids() == queued_bulk
    Queue.pause("bulk")
    pass_permits_and_tokens_on()
    assert urgent in queued_ids()
    assert len(queued_ids()) == len(queued_bulk)


def test_a_free_permit_does_not_go_to_a_paused_queue() -> None:
    make_worker()
    Queue.pause("bulk")
    running = [one_at_a_time.defer().pk]
    claim_exactly()
    bulk = one_at_a_time.using(queue_name="bulk").defer().pk
    urgent = one_at_a_time.using(queue_name="urgent").defer().pk
    Job.objects.filter(pk__in=running).delete()
    keys = blocked_keys(store)
    assert list(keys.values()) == [True]
    admit_keys(store, keys)
    assert queued_ids() == {urgent}
    claim_exactly(queue_name="urgent")
    Job.objects.filter(status="running").delete()
    assert blocked_keys(store) == {}, "only a paused queue has jobs of the key"
    Queue.resume("bulk")
    admit_keys(store, blocked_keys(store))
    assert queued_ids() == {bulk}


def test_a_token_does_not_go_to_a_paused_queue() -> None:
    shares_rate.defer()
    paused = shares_rate.using(queue_name="bulk", priority=9).defer().pk
    served = shares_rate.using(queue_name="urgent").defer().pk
    Queue.pause("bulk")
    Job.objects.filter(status="queued").delete()
    RateBucket.objects.all().delete()  # the token is free again
    admit_rate_keys(store, blocked_rates(store))
    assert queued_ids() == {served}
    Job.objects.filter(status="queued").delete()
    RateBucket.objects.all().delete()  # the token is free again
    admit_rate_keys(store, blocked_rates(store))
    assert queued_ids() == set()
    Queue.resume("bulk")
    Admit(store).run(0.0)
    assert queued_ids() == {paused}, "the next sweep finds the job"


def test_a_free_permit_does_not_go_to_a_job_of_a_paused_queue_behind_another_job() -> None:
    Queue.pause("bulk")
    running = two_per_account.defer_many([("a",)] * 2)
    claim_exactly(2)
    urgent = two_per_account.using(queue_name="urgent").defer("a").pk
    two_per_account.using(queue_name="bulk").defer("a")
    Job.objects.filter(pk__in=running).delete()
    admit_keys(store, blocked_keys(store))
    assert queued_ids() == {urgent}


@pytest.mark.parametrize(
    "urgent_worker", [{"queues": ["urgent"]}, {"queues": ["urgent"], "concurrency": 0}], ids=["worker", "relay"]
)
def test_jobs_of_a_queue_without_a_worker_give_their_permits_up(
    urgent_worker: dict[str, Any], pass_permits_and_tokens_on: Callable[..., None]
) -> None:
    make_worker(**urgent_worker)
    make_worker(queues=["bulk"], heartbeat=-timedelta(hours=1))  # a dead worker
    bulk = one_at_a_time.using(queue_name="bulk").defer().pk
    without_worker = one_at_a_time.using(queue_name="nobody's", priority=9).defer().pk
    pass_permits_and_tokens_on()
    assert queued_ids() == {bulk}, "no job waits in a served queue"
    urgent = one_at_a_time.using(queue_name="urgent").defer().pk
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent}
    pass_permits_and_tokens_on()
    assert queued_ids() == {urgent}
    assert Job.objects.get(pk=without_worker).status == "blocked"


def test_a_permit_unclaimed_for_a_second_goes_to_a_queue_whose_worker_has_a_free_slot(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker(queues=["bulk"])
    urgent_worker = make_worker(queues=["urgent"], concurrency=1)
    bulk = one_at_a_time.using(queue_name="bulk").defer().pk
    urgent = one_at_a_time.using(queue_name="urgent").defer().pk
    running = make_job("running", queue_name="urgent", locked_by=urgent_worker.pk)
    pass_permits_and_tokens_on(0.0)
    pass_permits_and_tokens_on(HELD_UP_SECONDS)
    assert queued_ids() == {bulk}, "the worker of the urgent job has no free slot"
    running.delete()
    pass_permits_and_tokens_on(HELD_UP_SECONDS + 0.1)
    assert queued_ids() == {urgent}
    pass_permits_and_tokens_on(HELD_UP_SECONDS + 0.2)
    assert queued_ids() == {urgent}, "the urgent job has not held the permit for a second yet"


def test_a_scan_of_many_keys_resumes_where_the_last_one_ended(
    pass_permits_and_tokens_on: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.parts.keyed.services.KEYS_AT_ONCE", 1)
    make_worker()
    for key in "abc":
        two_per_account.using(priority=-1).defer_many([(key,)] * 2)
    urgent = {two_per_account.defer(key).pk for key in "abc"}
    for _ in range(3):
        pass_permits_and_tokens_on()
    assert urgent < queued_ids()


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize(
    ("task", "prefix"), [(one_at_a_time, ",limit "), (shares_rate, ",rate ")], ids=["limit", "rate"]
)
def test_an_urgent_job_that_stays_blocked_makes_the_supervisors_scan_its_key_at_once(
    task: Any, prefix: str, is_in_transaction: bool, payloads_to_supervisors: Callable[[], list[str]]
) -> None:
    service = (pass_tokens_on if task is shares_rate else pass_permits_on)(store)
    task.using(priority=9).defer()
    assert not any(payload.startswith(prefix) for payload in payloads_to_supervisors()) or task is shares_rate
    task.defer()
    payloads_to_supervisors()
    with transaction.atomic() if is_in_transaction else nullcontext():
        task.using(priority=1).defer()
    payloads = [payload for payload in payloads_to_supervisors() if payload.startswith(prefix)]
    assert payloads
    service.run(time.monotonic())
    regular_scan_at = service.due_at
    service.notified(payloads)
    assert service.due_at < regular_scan_at


def test_a_job_in_a_served_queue_gets_the_permit_and_starts(runworker: RunWorker) -> None:
    runworker("--queues", "urgent")
    workers(1)
    one_at_a_time.using(queue_name="bulk").defer()
    one_at_a_time.using(queue_name="urgent", priority=1).defer()
    wait_for_statuses(completed=1, queued=1)


def test_a_job_behind_a_backlog_gives_its_permit_to_an_idle_worker(runworker: RunWorker) -> None:
    runworker("--queues", "urgent")
    workers(1)
    make_worker(queues=["bulk"])  # the row of a worker that never claims
    one_at_a_time.using(queue_name="bulk").defer()
    one_at_a_time.using(queue_name="urgent").defer()
    wait_for_statuses(completed=1, queued=1)


def test_no_permit_is_given_twice_if_jobs_change_while_permits_are_passed_on(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    """Another session may write a job's row after the statement has taken its snapshot, and before it locks the row."""
    make_worker()
    for number in range(300):
        one_per_number.using(priority=-1).defer(number)
        one_per_number.defer(number)
    changing_session = Session()
    ids = list(Job.objects.queued().values_list("pk", flat=True))
    tens_of_jobs = [Job.objects.filter(pk__in=ids[start : start + 10]) for start in range(0, 300, 10)]
    changes = [changing_session.start(jobs.change_priority, -2) for jobs in tens_of_jobs]
    for _ in range(3):
        pass_permits_and_tokens_on()
    for change in changes:
        change.result()
    changing_session.close()
    keys_with_two_permits = Job.objects.queued().values_list("limit_key").annotate(Count("pk")).filter(pk__count__gt=1)
    assert list(keys_with_two_permits) == []


def test_contested_keys_are_found_behind_many_keys_that_are_not_contested(
    pass_permits_and_tokens_on: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.parts.keyed.services.KEYS_AT_ONCE", 2)
    make_worker()
    for key in "abc":
        two_per_account.defer_many([(key,)] * 2)
    claim_exactly(6)
    for key in "abc":
        two_per_account.defer(key)
    two_per_account.using(priority=-1).defer_many([("d",)] * 2)
    urgent = two_per_account.defer("d").pk
    for _ in range(2):
        pass_permits_and_tokens_on()
    assert urgent in queued_ids()


def test_jobs_to_put_back_are_found_behind_many_jobs_that_keep_their_permits(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    make_worker(queues=["default"])
    for priority in (10, -50):  # 150 jobs of each priority hold all permits
        multiply(make_keyed("k", "queued", priority=priority, capacity=300), 149)
    better = make_keyed("k", priority=0, capacity=300).pk
    pass_permits_and_tokens_on()
    assert better in queued_ids()
    for queue_name in ("default", "nobody's"):
        multiply(make_keyed("m", "queued", capacity=300, queue_name=queue_name), 149)
    served = make_keyed("m", capacity=300).pk
    pass_permits_and_tokens_on()
    assert served in queued_ids()


def test_a_permit_is_not_passed_back_to_a_job_that_has_given_it_up(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    """The workers of both queues have free slots, but they are about to stop and claim nothing."""
    make_worker(queues=["a", "b"])
    first_of_a, _, job_of_b = (one_at_a_time.using(queue_name=name).defer().pk for name in "aab")
    queued_over_time: list[int] = []
    for second in range(20):
        pass_permits_and_tokens_on(float(second))
        queued_over_time += queued_ids()
    holders_of_the_permit = [id for id, _ in groupby(queued_over_time)]
    assert holders_of_the_permit == [first_of_a, job_of_b, first_of_a]


def test_a_carried_queue_is_not_served_by_a_worker_of_all_queues(
    pass_permits_and_tokens_on: Callable[..., None], settings: Any
) -> None:
    settings.SKIPQUEUE = {"CARRIERS": {"celery": {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf"}}}}
    make_worker()
    one_at_a_time.using(queue_name="pdf").defer()
    one_at_a_time.using(queue_name="pdf", priority=1).defer()
    served = one_at_a_time.defer().pk
    pass_permits_and_tokens_on()
    assert queued_ids() == {served}


def test_a_notification_with_too_many_keys_is_left_to_the_regular_scans(
    pass_permits_and_tokens_on: Callable[..., None],
) -> None:
    service = pass_permits_on(store)
    service.notified([",limit " + "\n".join(f"key {number}" for number in range(1_001))])
    assert not service.urgent
    service.notified([",limit k"])
    assert service.urgent == {"k"}
