"""The database of a job: chosen by name, by key, in turn, by Django's routers, or by a function."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_skipqueue import Batch, by, chain, job, limit, rate, unique_by
from django_skipqueue.exceptions import InvalidOption, UniqueKeyTaken
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, JobBatch
from django_skipqueue.parts.databases.choose import CallToPlace

from ..app.jobs import noop
from .conftest import BOTH

pytestmark = pytest.mark.django_db(databases=["default", "other"])

Placed = Callable[..., None]


@pytest.fixture(autouse=True)
def _tasks(registry: Registry) -> None:
    """Remove the tasks of a test after it."""


def pay(account_id: Any = 0, payment_id: Any = 0) -> None:
    """The function of a task that a test makes with its own options."""


def bill(owner: int) -> None:
    """The function of a task whose argument has another name than that of `pay`."""


def mail(region: str) -> None:
    """A task of a project with regions."""


def where(jobs: Any) -> list[str]:
    return [each._state.db for each in jobs]


def count() -> dict[str, int]:
    return {alias: Job.objects.using(alias).count() for alias in BOTH}


class TestByName:
    def test_every_job_is_in_the_first_database_unless_something_else_is_said(self, placed: Placed) -> None:
        placed()
        assert where([noop.defer()]) == ["default"]
        placed(DATABASE="other")
        assert where([noop.defer()]) == ["other"]
        assert noop.defer_many([{}, {}]).databases == ["other", "other"]

    def test_the_call_wins_over_the_task_and_the_task_over_the_placement(self, placed: Placed) -> None:
        placed("spread")
        task = job(database="other")(pay)
        assert set(where(task.defer() for _ in range(4))) == {"other"}
        assert set(where(task.using(database="default").defer() for _ in range(4))) == {"default"}
        assert task.defer_many([(1,)] * 3).databases == ["other"] * 3

    def test_an_alias_of_no_queue_is_refused_before_anything_is_written(self, placed: Placed) -> None:
        placed("spread", DATABASES=("default",))
        for call in (noop.using(database="other").defer, lambda: noop.using(database="other").defer_many([{}])):
            with pytest.raises(InvalidOption, match="database must be one of default, not 'other'"):
                call()
        assert count() == {"default": 0, "other": 0}

    def test_a_key_counts_in_the_database_that_is_named_alone(self, placed: Placed) -> None:
        placed("spread")
        named = [noop.using(unique_key="a", database=alias) for alias in BOTH]
        assert [task.defer().created for task in named] == [True, True]
        assert [task.defer().created for task in named] == [False, False]
        assert [noop.using(unique_key="a").defer().created for _ in range(2)] == [False, False]

    def test_no_such_alias_at_all(self) -> None:
        with pytest.raises(InvalidOption, match="database must be one of default, other, not 'nowhere'"):
            job(database="nowhere")(pay)


class TestSpread:
    def test_a_key_has_one_database_however_it_is_given(self, placed: Placed) -> None:
        placed("spread")
        task = job(shard_by="account_id")(pay)

        another = job(shard_by=("owner",))(bill)
        for number in range(20):
            jobs = [task.defer(number), task.defer(account_id=number), another.defer(owner=number)]
            jobs.append(noop.using(shard_key=number).defer())
            jobs.append(task.s(number).defer())
            assert len(set(where(jobs))) == 1
        assert min(count().values()) > 15

    def test_a_default_is_a_value_like_another(self, placed: Placed) -> None:
        placed("spread")
        task = job(shard_by="account_id")(pay)
        assert where([task.defer(), task.defer(0)]) in (["default"] * 2, ["other"] * 2)

    @pytest.mark.parametrize(
        "options",
        [
            {"unique": unique_by("account_id")},
            {"concurrency": limit(2, by="account_id")},
            {"sequence": by("account_id")},
            {"rate": rate("100/m", by="account_id")},
            {"unique": unique_by("account_id"), "on_conflict": "rerun"},
        ],
    )
    def test_keys_that_hold_within_one_database_choose_it(self, placed: Placed, options: Any) -> None:
        placed("spread")
        make: Any = job(**options)
        task = make(pay)
        chosen = {number: set(where(task.defer(number) for _ in range(3))) for number in range(20)}
        assert {len(aliases) for aliases in chosen.values()} == {1}
        assert {alias for aliases in chosen.values() for alias in aliases} == set(BOTH)

    def test_two_such_keys_need_a_word(self, placed: Placed) -> None:
        placed("spread")
        options: Any = {"unique": unique_by("payment_id"), "concurrency": limit(2, by="account_id")}
        make: Any = job(**options)
        made = make(pay)
        with pytest.raises(InvalidOption, match=r"Say which arguments decide: @job\(shard_by=…\)"):
            made.defer(1, 2)
        assert count() == {"default": 0, "other": 0}
        make = job(name="told", shard_by="account_id", **options)
        task = make(pay)
        assert len(set(where(task.defer(1, number) for number in range(6)))) == 1

    def test_a_fair_share_is_one_in_each_database(self, placed: Placed) -> None:
        placed("spread")
        task = job(fair_by="account_id")(pay)
        assert set(where(task.defer(1) for _ in range(2))) == set(BOTH)

    def test_without_a_key_it_is_their_turn(self, placed: Placed) -> None:
        placed("spread")
        assert Counter(where(noop.defer() for _ in range(10))) == {"default": 5, "other": 5}

    def test_many_calls_without_a_key_are_shared_out(self, placed: Placed) -> None:
        placed("spread")
        deferred = noop.defer_many([{}] * 11)
        assert sorted(Counter(deferred.databases).values()) == [5, 6]
        for alias, id, handle in zip(deferred.databases, deferred, deferred.handles, strict=True):
            assert Job.objects.by_handle(handle).pk == id
            assert handle == f"{alias}:{id}"

    def test_many_calls_with_keys_keep_their_order(self, placed: Placed) -> None:
        placed("spread")
        task = job(unique=unique_by("account_id"))(pay)
        first = task.defer_many([(number % 7,) for number in range(14)])
        assert set(first.databases) == set(BOTH)
        assert first.handles[:7] == first.handles[7:]
        assert first.outcomes == ["created"] * 7 + ["existing"] * 7
        for number, handle in enumerate(first.handles):
            assert Job.objects.by_handle(handle).args == [number % 7]
        assert task.defer_many([(3,), (9,)]).outcomes == ["existing", "created"]

    def test_wrong_values_are_refused(self, placed: Placed) -> None:
        for options in ({"shard_by": ()}, {"shard_by": 3}, {"shard_by": "nothing"}):
            with pytest.raises(InvalidOption, match="shard_by"):
                job(**options)(pay)
        for key in (True, 1.5, ["a"]):
            with pytest.raises(InvalidOption, match="shard_key must be a str or an integer"):
                noop.using(shard_key=key)  # type: ignore[arg-type]


class TestBatches:
    def test_the_jobs_of_a_batch_are_where_it_is(self, placed: Placed) -> None:
        placed("spread")
        for _ in range(2):
            with Batch(on_finish=noop) as batch:
                jobs = [noop.defer() for _ in range(3)]
                many = noop.defer_many([{}] * 3)
            assert set(where(jobs)) == set(many.databases) == {batch.database}
        assert {alias: JobBatch.objects.using(alias).count() for alias in BOTH} == {"default": 1, "other": 1}

    def test_a_batch_of_a_key_is_where_its_jobs_are(self, placed: Placed) -> None:
        placed("spread")
        task = job(shard_by="account_id")(pay)
        for number in range(8):
            with Batch(shard_key=number) as batch:
                assert where([task.defer(number), noop.defer()]) == [batch.database] * 2
            with Batch(on_success=task.s(number)) as batch:
                assert where([task.defer(number)]) == [batch.database]

    def test_a_job_that_belongs_elsewhere_is_refused(self, placed: Placed) -> None:
        placed("spread")
        task = job(shard_by="account_id")(pay)
        there = next(number for number in range(99) if where([task.defer(number)]) == ["other"])
        with pytest.raises(InvalidOption, match="cannot belong to a batch in 'default'"), Batch(database="default"):
            task.defer(there)
        with pytest.raises(InvalidOption, match="on_success is a call in the database 'other'"):
            Batch(database="default", on_success=task.s(there))

    def test_a_chain_is_where_its_keys_are(self, placed: Placed) -> None:
        placed("spread")
        task = job(shard_by="account_id")(pay)
        for number in range(8):
            jobs = chain(noop.s(), task.s(number), [noop.s(), noop.s()]).defer()
            assert set(where(jobs)) == set(where([task.defer(number)]))

    def test_a_job_is_in_the_database_of_the_jobs_that_it_waits_for(self, placed: Placed) -> None:
        placed("spread")
        for _ in range(4):
            first = noop.defer()
            assert where([noop.using(after=[first]).defer()]) == where([first])
            assert where([noop.using(after=[first.handle]).defer()]) == where([first])


class Router:
    """Sends jobs as a router of tenants would."""

    alias = "other"

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        self.seen.append((model, hints))
        return self.alias

    seen: list[Any] = []


class TestRouter:
    @pytest.fixture(autouse=True)
    def _router(self, settings: Any) -> None:
        Router.seen, Router.alias = [], "other"
        settings.DATABASE_ROUTERS = ["tests.databases.test_choose.Router"]

    def test_djangos_routers_are_asked(self, placed: Placed) -> None:
        placed("router")
        assert where([noop.using(queue_name="mail").defer()]) == ["other"]
        assert Router.seen[0] == (Job, {"task": "tests.app.jobs.noop", "queue_name": "mail"})
        Router.alias = "default"
        assert noop.defer_many([{}]).databases == ["default"]

    def test_the_job_is_in_the_transaction_of_the_tenants_data(self, placed: Placed) -> None:
        placed("router")
        with transaction.atomic(using="other"):
            noop.defer()
            transaction.set_rollback(True, using="other")
        assert count() == {"default": 0, "other": 0}

    def test_our_own_router_leaves_the_choice_to_them(self, placed: Placed, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ["django_skipqueue.routers.QueueRouter", "tests.databases.test_choose.Router"]
        placed("router")
        assert where([noop.defer()]) == ["other"]

    def test_an_alias_without_a_queue_is_refused(self, placed: Placed) -> None:
        placed("router", DATABASES=("default",))
        with pytest.raises(InvalidOption, match=r"chose the database 'other', but jobs may only be put into default"):
            noop.defer()
        assert count() == {"default": 0, "other": 0}


def by_region(call: CallToPlace) -> str:
    """A function for the setting PLACEMENT."""
    return {"eu": "other"}.get(call.kwargs.get("region", ""), "default")


def test_a_function_chooses(placed: Placed, registry: Registry) -> None:
    send = job(queue_name="mail")(mail)
    for placement in (by_region, "tests.databases.test_choose.by_region"):
        placed(placement)
        assert where([send.defer(region="eu"), send.defer(region="us")]) == ["other", "default"]
        assert send.defer_many([{"region": "us"}, {"region": "eu"}]).databases == ["default", "other"]
    placed(lambda call: "nowhere")
    with pytest.raises(InvalidOption, match="chose the database 'nowhere'"):
        send.defer(region="eu")


class TestRetiring:
    """Only one unfinished job has a unique key, also while a database is retiring."""

    @pytest.fixture(autouse=True)
    def _held(self, placed: Placed) -> None:
        placed(DATABASES=("other",))
        self.task = job(unique=unique_by("account_id"))(pay)
        self.old = self.task.defer(1)
        placed(DATABASES=("default",), RETIRING=("other",))

    def test_the_holder_is_found(self) -> None:
        again = self.task.defer(1)
        assert (again.created, again.handle) == (False, self.old.handle)
        many = self.task.defer_many([(1,), (2,)])
        assert many.handles[0] == self.old.handle
        assert (many.databases, many.outcomes) == (["other", "default"], ["existing", "created"])

    def test_a_holder_in_a_retiring_database_is_replaced_and_raised_there(self) -> None:
        replaced = self.task.using(on_conflict="replace").defer(1, payment_id=7)
        assert (replaced.handle, replaced.kwargs) == (self.old.handle, {"payment_id": 7})
        with pytest.raises(UniqueKeyTaken):
            self.task.using(on_conflict="raise").defer(1)

    def test_a_finished_one_holds_nothing(self) -> None:
        self.old.discard()
        assert self.task.defer(1).handle.startswith("default:")

    def test_other_jobs_go_on_to_the_new_one(self) -> None:
        assert where([self.task.defer(2), noop.defer()]) == ["default", "default"]
        assert where([noop.using(database="other").defer()]) == ["other"], "by name, as for jobs that belong together"


def test_a_handle_names_a_job(placed: Placed) -> None:
    here, there = noop.defer(), noop.using(database="other").defer()
    assert (here.handle, there.handle) == (f"default:{here.pk}", f"other:{there.pk}")
    assert Job.objects.by_handle(there.handle) == there
    assert Job.objects.by_handle(str(here.pk)) == here
    with pytest.raises(Job.DoesNotExist):
        Job.objects.by_handle(f"other:{there.pk + 1}")
    for text in ("", "other", "other:", ":1", "other:x", "other:-1", "nowhere:1", "other:\u0661"):
        with pytest.raises(InvalidOption):
            Job.objects.by_handle(text)
