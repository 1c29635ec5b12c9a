"""Which call waits for which open transaction of another session, as docs/explanation/deadlocks.md describes it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_skipqueue.exceptions import UniqueKeyDeadlock
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ...app import jobs
from ...app.rows import make_job
from ...app.sessions import Session

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def add_with_key(**options: Any) -> Any:
    return jobs.add.using(unique_key="k", **options)


def enqueue_new() -> None:
    add_with_key().defer(1)


def replace_waiting() -> None:
    assert add_with_key(on_conflict="replace").defer(1).replaced


def reschedule() -> None:
    assert Job.objects.get().reschedule(timedelta(hours=2))


def find_waiting() -> None:
    assert not add_with_key().defer(1).created


def find_until_started() -> None:
    assert not add_with_key(until="started").defer(1).created


def retry_oldest_failed() -> None:
    assert Job.objects.filter(status="failed").earliest("pk").retry()


def retry_newest_failed() -> None:
    Job.objects.filter(status="failed").latest("pk").retry()


def defer_or_skip() -> None:
    add_with_key().defer(2)


def defer_or_raise() -> None:
    add_with_key(on_conflict="raise").defer(2)


def defer_many_or_skip() -> None:
    add_with_key().defer_many([(2,)])


def defer_without_a_key() -> None:
    jobs.add.defer(2)


def claim() -> None:
    Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")


def find_running_instead_of_replacing() -> None:
    assert not add_with_key(on_conflict="replace").defer(2).replaced


def find_running_instead_of_replacing_in_a_batch() -> None:
    replacing = jobs.echo.using(unique_key=lambda key: key, on_conflict="replace")
    assert replacing.defer_many([("k",), ("l",)]).outcomes == ["existing", "created"]


def settle() -> None:
    running = Job.objects.get(status="running")
    assert Store("default").settle([Settlement(running.pk, running.lease, COMPLETED)])


def cancel() -> None:
    Job.objects.all().cancel()


# Jobs that exist; what the first transaction does; calls of other sessions that wait for its commit.
CALLS_THAT_WAIT = [
    ("no job", enqueue_new, [defer_or_skip, defer_many_or_skip, defer_or_raise, replace_waiting, find_until_started]),
    ("waiting job", replace_waiting, [defer_or_skip, defer_many_or_skip, replace_waiting, find_until_started]),
    ("waiting job", reschedule, [defer_or_skip, replace_waiting]),
    ("waiting job with a key until its start", find_until_started, [replace_waiting]),
    ("two failed jobs", retry_oldest_failed, [defer_or_skip, replace_waiting, retry_newest_failed]),
]

# Jobs that exist; what the first transaction does; calls of other sessions that do not wait for its commit.
CALLS_THAT_DO_NOT_WAIT = [
    ("no job", enqueue_new, [defer_without_a_key, claim, cancel]),
    ("waiting job", replace_waiting, [defer_without_a_key, claim, cancel]),
    ("waiting job", find_waiting, [find_waiting, replace_waiting, find_until_started, claim]),
    (
        "waiting job with a key until its start",
        find_until_started,
        [find_until_started, find_waiting, claim, cancel, defer_without_a_key],
    ),
    ("two failed jobs", retry_oldest_failed, [defer_without_a_key, claim, cancel]),
    ("running job", find_running_instead_of_replacing, [settle]),
    ("running job", find_running_instead_of_replacing_in_a_batch, [settle]),
    ("running job", find_until_started, [settle]),
]


def make_jobs(existing: str) -> None:
    if existing == "waiting job":
        add_with_key().defer(1)
    elif existing == "waiting job with a key until its start":
        add_with_key(until="started").defer(1)
    elif existing == "running job":
        add_with_key().defer(1)
        claim()
    elif existing == "two failed jobs":
        make_job("failed", unique_key="k")
        make_job("failed", unique_key="k")


def cases(table: list[Any]) -> list[Any]:
    return [
        pytest.param(existing, open_call, other_call, id=f"{existing}-{open_call.__name__}-{other_call.__name__}")
        for existing, open_call, other_calls in table
        for other_call in other_calls
    ]


@pytest.mark.parametrize(("existing", "open_call", "other_call"), cases(CALLS_THAT_WAIT))
def test_the_call_waits_for_the_open_transaction_of_another_session(
    existing: str, open_call: Callable[[], None], other_call: Callable[[], None], session: Callable[[], Session]
) -> None:
    make_jobs(existing)
    first_session, second_session = session(), session()
    first_session.begin()
    first_session(open_call)
    waiting_call = second_session.start(other_call)
    second_session.wait_until_blocked()
    first_session.commit()
    waiting_call.exception(20)  # the call ends now, perhaps with an error
    assert waiting_call.done()


@pytest.mark.parametrize(("existing", "open_call", "other_call"), cases(CALLS_THAT_DO_NOT_WAIT))
def test_the_call_does_not_wait_for_the_open_transaction_of_another_session(
    existing: str, open_call: Callable[[], None], other_call: Callable[[], None], session: Callable[[], Session]
) -> None:
    make_jobs(existing)
    first_session, second_session = session(), session()
    first_session.begin()
    first_session(open_call)
    second_session.start(other_call).result(20)
    first_session.commit()


def lock_job_k() -> None:
    Job.objects.select_for_update().get(unique_key="k")


def mark_job_k_running() -> None:
    """Write what a claim writes. A real claim would skip the row, because a caller waits for it."""
    Job.objects.filter(unique_key="k").update(status="running", lease=1)


def echo_with_its_value_as_key(**options: Any) -> Any:
    return jobs.echo.using(unique_key=lambda key: key, **options)


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
@pytest.mark.parametrize("options", [{"on_conflict": "replace"}, {"until": "started"}], ids=str)
def test_a_caller_does_not_keep_a_job_locked_that_was_claimed_while_the_caller_waited(
    options: dict[str, Any], use_defer_many: bool, session: Callable[[], Session]
) -> None:
    """The worker can settle the job before the caller commits."""
    for key in ("j", "k"):
        echo_with_its_value_as_key().defer(key)
    worker, caller = session(), session()
    worker.begin()
    worker(lock_job_k)
    caller.begin()
    task = echo_with_its_value_as_key(**options)
    waiting_call = caller.start(task.defer_many, [("j",), ("k",)]) if use_defer_many else caller.start(task.defer, "k")
    caller.wait_until_blocked()
    worker(mark_job_k_running)
    worker.commit()
    waiting_call.result(20)
    assert Store("default").locked([(Job.objects.get(unique_key="k").pk, 1)]) == set(), "the caller holds no lock"
    caller.commit()
    assert Job.objects.get(unique_key="k").status == "running"


@pytest.mark.parametrize("options", [{"on_conflict": "replace"}, {"until": "started"}], ids=str)
def test_a_batch_that_waits_for_the_lock_of_one_key_has_not_locked_later_keys(
    options: dict[str, Any], session: Callable[[], Session]
) -> None:
    """While the batch waits for "k", a worker claims and completes the job of "l". The batch then makes a new job."""
    for key in ("k", "l"):
        echo_with_its_value_as_key().defer(key)
    locking_session, caller = session(), session()
    locking_session.begin()
    locking_session(lock_job_k)
    caller.begin()
    waiting_call = caller.start(echo_with_its_value_as_key(**options).defer_many, [("k",), ("l",)])
    caller.wait_until_blocked()
    (job_of_later_key,) = Job.objects.claim(queue_names=["default"], limit=9, worker_id="w")
    assert job_of_later_key.unique_key == "l"
    job_of_later_key.complete()
    locking_session.commit()
    outcome = "replaced" if "on_conflict" in options else "existing"
    assert waiting_call.result(20).outcomes == [outcome, "created"]
    caller.commit()


@pytest.mark.parametrize("use_defer_many", [False, True], ids=["defer", "defer_many"])
def test_a_replacement_that_waited_for_another_replacement_overwrites_it(
    use_defer_many: bool, session: Callable[[], Session]
) -> None:
    add_with_key().defer(1)
    first_session, second_session = session(), session()
    first_session.begin()
    first_session(add_with_key(on_conflict="replace").defer, 2)
    replacing = add_with_key(on_conflict="replace")
    waiting_call = (
        second_session.start(replacing.defer_many, [(3,)])
        if use_defer_many
        else second_session.start(replacing.defer, 3)
    )
    second_session.wait_until_blocked()
    first_session.commit()
    waiting_call.result(20)
    assert Job.objects.get().args == [3]


def test_a_batch_replaces_waiting_jobs_and_leaves_running_jobs() -> None:
    """Of 20 keys, 5 have running jobs, 10 have waiting jobs, and 5 are free."""
    keys = [f"k{number:02}" for number in range(20)]
    echo_with_its_value_as_key().defer_many([(key,) for key in keys[:15]])
    running = {job.unique_key for job in Job.objects.claim(queue_names=["default"], limit=5, worker_id="w")}
    expected = ["existing" if key in running else "replaced" for key in keys[:15]] + ["created"] * 5
    assert echo_with_its_value_as_key(on_conflict="replace").defer_many([(key,) for key in keys]).outcomes == expected
    with transaction.atomic():
        result = echo_with_its_value_as_key(on_conflict="replace").defer_many([(key,) for key in keys])
    assert result.outcomes == [*expected[:15], *["replaced"] * 5]


# Retries of several jobs


def make_failed_jobs(*keys: str) -> list[int]:
    """Make failed jobs with these unique keys. Returns their ids in this order."""
    return [make_job("failed", unique_key=key).pk for key in keys]


def retry_by_ids(ids: list[int]) -> set[int]:
    return set(store.retry(ids))


def test_a_retry_and_a_defer_many_with_keys_in_opposite_order_do_not_deadlock(session: Callable[[], Session]) -> None:
    """A third transaction holds the key "m", so that the retry waits after it has taken one of the keys "a" and "Z"."""
    ids = make_failed_jobs("a", "m", "Z")
    middle_locker, retrying, deferring = session(), session(), session()
    middle_locker.begin()
    middle_locker(jobs.add.using(unique_key="m").defer, 1)
    first = retrying.start(retry_by_ids, ids)
    retrying.wait_until_blocked()
    second = deferring.start(jobs.echo.using(unique_key=lambda value: value).defer_many, [("a",), ("Z",)])
    deferring.wait_until_blocked()
    middle_locker.rollback()
    assert first.result(20) == set(ids)
    assert second.result(20).outcomes == ["existing", "existing"]


def test_two_retries_with_keys_in_opposite_order_do_not_deadlock(session: Callable[[], Session]) -> None:
    first_ids, second_ids = make_failed_jobs("b", "m", "a"), make_failed_jobs("a", "b")
    middle_locker, retrying, other_retrying = session(), session(), session()
    middle_locker.begin()
    middle_locker(jobs.add.using(unique_key="m").defer, 1)
    first = retrying.start(retry_by_ids, first_ids)
    retrying.wait_until_blocked()
    second = other_retrying.start(retry_by_ids, second_ids)
    other_retrying.wait_until_blocked()
    middle_locker.rollback()
    assert first.result(20) == set(first_ids)
    assert second.result(20) == set()


@pytest.mark.parametrize("in_a_transaction", [True, False], ids=["in a transaction", "outside a transaction"])
def test_a_retry_that_is_the_victim_of_a_deadlock_is_repeated_only_outside_a_transaction(
    monkeypatch: pytest.MonkeyPatch, *, in_a_transaction: bool
) -> None:
    """The caller's transaction may hold the key for which the other session waits, so it must end first."""
    ids, original_rows = make_failed_jobs("a"), store.rows
    victims: list[int] = []

    def fail_once_with_a_deadlock(statement: str, values: Any = None) -> Any:
        if not victims:
            victims.append(1)
            return original_rows("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")
        return original_rows(statement, values)

    monkeypatch.setattr(store, "rows", fail_once_with_a_deadlock)
    if in_a_transaction:
        with pytest.raises(UniqueKeyDeadlock, match="retry"), transaction.atomic():
            store.retry(ids)
    else:
        assert set(store.retry(ids)) == set(ids)
