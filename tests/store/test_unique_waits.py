"""Which call waits for which open transaction, as docs/explanation/deadlocks.md says."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_skipqueue.exceptions import UniqueKeyDeadlock
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ..app import jobs
from ..app.rows import make_job
from ..app.sessions import Session

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def task(**options: Any) -> Any:
    return jobs.add.using(unique_key="k", **options)


def enqueue() -> None:
    task().defer(1)


def replace() -> None:
    assert task(on_conflict="replace").defer(1).replaced


def change() -> None:
    assert Job.objects.get().reschedule(timedelta(hours=2))


def find() -> None:
    assert not task().defer(1).created


def find_until_started() -> None:
    assert not task(until="started").defer(1).created


def retry() -> None:
    assert Job.objects.filter(status="failed").earliest("pk").retry()


def retry_another() -> None:
    Job.objects.filter(status="failed").latest("pk").retry()


def skip() -> None:
    task().defer(2)


def raise_() -> None:
    task(on_conflict="raise").defer(2)


def skip_many() -> None:
    task().defer_many([(2,)])


def plain() -> None:
    jobs.add.defer(2)


def claim() -> None:
    Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")


def replace_running() -> None:
    assert not task(on_conflict="replace").defer(2).replaced


def replace_running_of_many() -> None:
    several = jobs.echo.using(unique_key=lambda key: key, on_conflict="replace")
    assert several.defer_many([("k",), ("l",)]).outcomes == ["existing", "created"]


def settle() -> None:
    running = Job.objects.get(status="running")
    assert Store("default").settle([Settlement(running.pk, running.lease, COMPLETED)])


def cancel() -> None:
    Job.objects.all().cancel()


WAITS = [
    ("nothing", enqueue, [skip, skip_many, raise_, replace, find_until_started]),
    ("waiting", replace, [skip, skip_many, replace, find_until_started]),
    ("waiting", change, [skip, replace]),
    ("started", find_until_started, [replace]),
    ("failed", retry, [skip, replace, retry_another]),
]

GOES_ON = [
    ("nothing", enqueue, [plain, claim, cancel]),
    ("waiting", replace, [plain, claim, cancel]),
    ("waiting", find, [find, replace, find_until_started, claim]),
    ("started", find_until_started, [find_until_started, find, claim, cancel, plain]),
    ("failed", retry, [plain, claim, cancel]),
    ("running", replace_running, [settle]),
    ("running", replace_running_of_many, [settle]),
    ("running", find_until_started, [settle]),
]


def scene(name: str) -> None:
    if name == "waiting":
        task().defer(1)
    elif name == "started":
        task(until="started").defer(1)
    elif name == "running":
        task().defer(1)
        claim()
    elif name == "failed":
        make_job("failed", unique_key="k")
        make_job("failed", unique_key="k")


def cases(table: list[Any]) -> list[Any]:
    return [
        pytest.param(at, one, other, id=f"{at}-{one.__name__}-{other.__name__}")
        for at, one, others in table
        for other in others
    ]


@pytest.mark.parametrize(("at", "one", "other"), cases(WAITS))
def test_the_call_waits_until_the_commit(
    at: str, one: Callable[[], None], other: Callable[[], None], session: Callable[[], Session]
) -> None:
    scene(at)
    first, second = session(), session()
    first.begin()
    first(one)
    called = second.start(other)
    second.wait_until_blocked()
    first.commit()
    called.exception(20)
    assert called.done()


@pytest.mark.parametrize(("at", "one", "other"), cases(GOES_ON))
def test_the_call_does_not_wait(
    at: str, one: Callable[[], None], other: Callable[[], None], session: Callable[[], Session]
) -> None:
    scene(at)
    first, second = session(), session()
    first.begin()
    first(one)
    second.start(other).result(20)
    first.commit()


def lock() -> None:
    Job.objects.select_for_update().get(unique_key="k")


def begin_to_run() -> None:
    """Write what a claim writes. The claim itself would pass over a row that a caller waits for."""
    Job.objects.filter(unique_key="k").update(status="running", lease=1)


def by_key(**options: Any) -> Any:
    return jobs.echo.using(unique_key=lambda key: key, **options)


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
@pytest.mark.parametrize("options", [{"on_conflict": "replace"}, {"until": "started"}], ids=str)
def test_a_job_that_was_claimed_while_a_caller_waited_for_it_is_not_kept_locked(
    options: dict[str, Any], many: bool, session: Callable[[], Session]
) -> None:
    """The settle of the job does not wait for the commit of the caller."""
    for key in ("j", "k"):
        by_key().defer(key)
    worker, caller = session(), session()
    worker.begin()
    worker(lock)
    caller.begin()
    called = by_key(**options)
    found = caller.start(called.defer_many, [("j",), ("k",)]) if many else caller.start(called.defer, "k")
    caller.wait_until_blocked()
    worker(begin_to_run)
    worker.commit()
    found.result(20)
    assert Store("default").locked([(Job.objects.get(unique_key="k").pk, 1)]) == set()
    caller.commit()
    assert Job.objects.get(unique_key="k").status == "running"


@pytest.mark.parametrize("options", [{"on_conflict": "replace"}, {"until": "started"}], ids=str)
def test_while_a_batch_waits_for_a_key_it_holds_no_later_key(
    options: dict[str, Any], session: Callable[[], Session]
) -> None:
    """A worker claims and settles the job of the later key. The batch then finds the key free, and makes a job."""
    for key in ("k", "l"):
        by_key().defer(key)
    other, caller = session(), session()
    other.begin()
    other(lock)
    caller.begin()
    found = caller.start(by_key(**options).defer_many, [("k",), ("l",)])
    caller.wait_until_blocked()
    (later,) = Job.objects.claim(queue_names=["default"], limit=9, worker_id="w")
    assert later.unique_key == "l"
    later.complete()
    other.commit()
    outcome = "replaced" if "on_conflict" in options else "existing"
    assert found.result(20).outcomes == [outcome, "created"]
    caller.commit()


@pytest.mark.parametrize("many", [False, True], ids=["defer", "defer_many"])
def test_of_two_replacements_at_once_the_last_replacement_counts(many: bool, session: Callable[[], Session]) -> None:
    task().defer(1)
    first, second = session(), session()
    first.begin()
    first(task(on_conflict="replace").defer, 2)
    last = task(on_conflict="replace")
    called = second.start(last.defer_many, [(3,)]) if many else second.start(last.defer, 3)
    second.wait_until_blocked()
    first.commit()
    called.result(20)
    assert Job.objects.get().args == [3]


def test_a_batch_replaces_waiting_jobs_and_leaves_running_jobs() -> None:
    """Of many keys, some have running jobs, some have waiting jobs, and some are free; in a transaction and outside."""
    keys = [f"k{number:02}" for number in range(20)]
    by_key().defer_many([(key,) for key in keys[:15]])
    running = {job.unique_key for job in Job.objects.claim(queue_names=["default"], limit=5, worker_id="w")}
    expected = ["existing" if key in running else "replaced" for key in keys[:15]] + ["created"] * 5
    assert by_key(on_conflict="replace").defer_many([(key,) for key in keys]).outcomes == expected
    with transaction.atomic():
        again = by_key(on_conflict="replace").defer_many([(key,) for key in keys])
    assert again.outcomes == [*expected[:15], *["replaced"] * 5]


# Retries of several jobs


def failed_with_keys(*keys: str) -> list[int]:
    """Failed jobs with these unique keys, in the order of their ids."""
    return [make_job("failed", unique_key=key).pk for key in keys]


def retry_first(ids: list[int]) -> set[int]:
    return set(store.retry(ids))


def test_a_retry_and_a_defer_many_with_keys_in_opposite_order_do_not_deadlock(session: Callable[[], Session]) -> None:
    """A third transaction holds a key that the retry takes between the two keys, so that the retry has begun."""
    ids = failed_with_keys("a", "m", "Z")
    gate, retrying, deferring = session(), session(), session()
    gate.begin()
    gate(jobs.add.using(unique_key="m").defer, 1)
    first = retrying.start(retry_first, ids)
    retrying.wait_until_blocked()
    second = deferring.start(jobs.echo.using(unique_key=lambda value: value).defer_many, [("a",), ("Z",)])
    deferring.wait_until_blocked()
    gate.rollback()
    assert first.result(20) == set(ids)
    assert second.result(20).outcomes == ["existing", "existing"]


def test_two_retries_with_keys_in_opposite_order_do_not_deadlock(session: Callable[[], Session]) -> None:
    one, other = failed_with_keys("b", "m", "a"), failed_with_keys("a", "b")
    gate, retrying, again = session(), session(), session()
    gate.begin()
    gate(jobs.add.using(unique_key="m").defer, 1)
    first = retrying.start(retry_first, one)
    retrying.wait_until_blocked()
    second = again.start(retry_first, other)
    again.wait_until_blocked()
    gate.rollback()
    assert first.result(20) == set(one)
    assert second.result(20) == set()


@pytest.mark.parametrize("is_within", [True, False])
def test_a_retry_that_is_the_victim_of_a_deadlock_tries_again_or_says_so(
    monkeypatch: pytest.MonkeyPatch, *, is_within: bool
) -> None:
    """The retry tries again, unless the caller's transaction may hold the key that the other session waits for."""
    ids, rows = failed_with_keys("a"), store.rows
    victims: list[int] = []

    def rows_of_a_victim(statement: str, values: Any = None) -> Any:
        if not victims:
            victims.append(1)
            return rows("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")
        return rows(statement, values)

    monkeypatch.setattr(store, "rows", rows_of_a_victim)
    if is_within:
        with pytest.raises(UniqueKeyDeadlock, match="retry"), transaction.atomic():
            store.retry(ids)
    else:
        assert set(store.retry(ids)) == set(ids)
