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

from ...app.jobs import noop
from .conftest import BOTH

pytestmark = pytest.mark.django_db(databases=["default", "other"])

SetPlacement = Callable[..., None]


@pytest.fixture(autouse=True)
def _tasks(registry: Registry) -> None:
    """Remove the tasks of a test after it."""


def pay(account_id: Any = 0, payment_id: Any = 0) -> None:
    """The function of a task that a test makes with its own options."""


def bill(owner: int) -> None:
    """The function of a task whose argument has another name than the argument of `pay`."""


def mail(region: str) -> None:
    """A task of a project with regions."""


def databases_of(jobs: Any) -> list[str]:
    return [job._state.db for job in jobs]


def count_by_database() -> dict[str, int]:
    return {alias: Job.objects.using(alias).count() for alias in BOTH}


class TestByName:
    def test_a_job_goes_to_the_first_database_by_default(self, set_placement: SetPlacement) -> None:
        set_placement()
        assert databases_of([noop.defer()]) == ["default"]
        set_placement(DATABASE="other")
        assert databases_of([noop.defer()]) == ["other"]
        assert noop.defer_many([{}, {}]).databases == ["other", "other"]

    def test_the_call_wins_over_the_task_and_the_task_over_the_placement(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(database="other")(pay)
        assert set(databases_of(task.defer() for _ in range(4))) == {"other"}
        assert set(databases_of(task.using(database="default").defer() for _ in range(4))) == {"default"}
        assert task.defer_many([(1,)] * 3).databases == ["other"] * 3

    def test_a_database_without_a_queue_is_refused_before_a_job_is_inserted(self, set_placement: SetPlacement) -> None:
        set_placement("spread", DATABASES=("default",))
        for call in (noop.using(database="other").defer, lambda: noop.using(database="other").defer_many([{}])):
            with pytest.raises(InvalidOption, match="database must be one of default, not 'other'"):
                call()
        assert count_by_database() == {"default": 0, "other": 0}

    def test_a_unique_key_with_a_named_database_counts_in_that_database_alone(
        self, set_placement: SetPlacement
    ) -> None:
        set_placement("spread")
        tasks = [noop.using(unique_key="a", database=alias) for alias in BOTH]
        assert [task.defer().created for task in tasks] == [True, True]
        assert [task.defer().created for task in tasks] == [False, False]
        assert [noop.using(unique_key="a").defer().created for _ in range(2)] == [False, False]

    def test_a_task_with_an_unknown_database_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="database must be one of default, other, not 'nowhere'"):
            job(database="nowhere")(pay)


class TestSpread:
    def test_a_shard_key_chooses_the_same_database_however_it_is_passed(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(shard_by="account_id")(pay)
        bill_task = job(shard_by=("owner",))(bill)
        for number in range(20):
            jobs = [task.defer(number), task.defer(account_id=number), bill_task.defer(owner=number)]
            jobs.append(noop.using(shard_key=number).defer())
            jobs.append(task.s(number).defer())
            assert len(set(databases_of(jobs))) == 1
        assert min(count_by_database().values()) > 15, "both databases are used"

    def test_a_default_argument_chooses_the_same_database_as_a_passed_one(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(shard_by="account_id")(pay)
        assert databases_of([task.defer(), task.defer(0)]) in (["default"] * 2, ["other"] * 2)

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
    def test_keys_of_uniqueness_limits_sequences_and_rates_choose_the_database(
        self, set_placement: SetPlacement, options: Any
    ) -> None:
        set_placement("spread")
        decorate: Any = job(**options)
        task = decorate(pay)
        aliases_by_number = {number: set(databases_of(task.defer(number) for _ in range(3))) for number in range(20)}
        assert {len(aliases) for aliases in aliases_by_number.values()} == {1}, "one database for each key"
        assert {alias for aliases in aliases_by_number.values() for alias in aliases} == set(BOTH)

    def test_two_different_keys_need_the_option_shard_by(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        options: Any = {"unique": unique_by("payment_id"), "concurrency": limit(2, by="account_id")}
        decorate: Any = job(**options)
        task_without_shard = decorate(pay)
        with pytest.raises(InvalidOption, match=r"Say which arguments decide: @job\(shard_by=…\)"):
            task_without_shard.defer(1, 2)
        assert count_by_database() == {"default": 0, "other": 0}
        decorate = job(name="with_shard_by", shard_by="account_id", **options)
        task = decorate(pay)
        assert len(set(databases_of(task.defer(1, number) for number in range(6)))) == 1

    def test_fair_by_does_not_choose_a_database(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(fair_by="account_id")(pay)
        assert set(databases_of(task.defer(1) for _ in range(2))) == set(BOTH)

    def test_jobs_without_a_key_go_to_the_databases_in_turn(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        assert Counter(databases_of(noop.defer() for _ in range(10))) == {"default": 5, "other": 5}

    def test_defer_many_shares_calls_without_a_key_between_the_databases(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        deferred = noop.defer_many([{}] * 11)
        assert sorted(Counter(deferred.databases).values()) == [5, 6]
        for alias, id, handle in zip(deferred.databases, deferred, deferred.handles, strict=True):
            assert Job.objects.by_handle(handle).pk == id
            assert handle == f"{alias}:{id}"

    def test_defer_many_with_keys_keeps_the_order_of_the_calls(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(unique=unique_by("account_id"))(pay)
        deferred = task.defer_many([(number % 7,) for number in range(14)])
        assert set(deferred.databases) == set(BOTH)
        assert deferred.handles[:7] == deferred.handles[7:]
        assert deferred.outcomes == ["created"] * 7 + ["existing"] * 7
        for number, handle in enumerate(deferred.handles):
            assert Job.objects.by_handle(handle).args == [number % 7]
        assert task.defer_many([(3,), (9,)]).outcomes == ["existing", "created"]

    def test_wrong_values_of_shard_by_and_shard_key_are_refused(self, set_placement: SetPlacement) -> None:
        for options in ({"shard_by": ()}, {"shard_by": 3}, {"shard_by": "nothing"}):
            with pytest.raises(InvalidOption, match="shard_by"):
                job(**options)(pay)
        for key in (True, 1.5, ["a"]):
            with pytest.raises(InvalidOption, match="shard_key must be a str or an integer"):
                noop.using(shard_key=key)  # type: ignore[arg-type]


class TestBatches:
    def test_jobs_of_a_batch_go_to_the_database_of_the_batch(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        for _ in range(2):
            with Batch(on_finish=noop) as batch:
                jobs = [noop.defer() for _ in range(3)]
                deferred_together = noop.defer_many([{}] * 3)
            assert set(databases_of(jobs)) == set(deferred_together.databases) == {batch.database}
        assert {alias: JobBatch.objects.using(alias).count() for alias in BOTH} == {"default": 1, "other": 1}

    def test_a_batch_with_a_shard_key_goes_to_the_database_of_the_key(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(shard_by="account_id")(pay)
        for number in range(8):
            with Batch(shard_key=number) as batch:
                assert databases_of([task.defer(number), noop.defer()]) == [batch.database] * 2
            with Batch(on_success=task.s(number)) as batch:
                assert databases_of([task.defer(number)]) == [batch.database]

    def test_a_batch_refuses_a_job_whose_key_belongs_to_another_database(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(shard_by="account_id")(pay)
        number_in_other = next(number for number in range(99) if databases_of([task.defer(number)]) == ["other"])
        with pytest.raises(InvalidOption, match="cannot belong to a batch in 'default'"), Batch(database="default"):
            task.defer(number_in_other)
        with pytest.raises(InvalidOption, match="on_success is a call in the database 'other'"):
            Batch(database="default", on_success=task.s(number_in_other))

    def test_a_chain_goes_to_the_database_of_its_keys(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        task = job(shard_by="account_id")(pay)
        for number in range(8):
            jobs = chain(noop.s(), task.s(number), [noop.s(), noop.s()]).defer()
            assert set(databases_of(jobs)) == set(databases_of([task.defer(number)]))

    def test_a_job_is_in_the_database_of_the_jobs_that_it_waits_for(self, set_placement: SetPlacement) -> None:
        set_placement("spread")
        for _ in range(4):
            predecessor = noop.defer()
            assert databases_of([noop.using(after=[predecessor]).defer()]) == databases_of([predecessor])
            assert databases_of([noop.using(after=[predecessor.handle]).defer()]) == databases_of([predecessor])


class Router:
    """Sends jobs as a router of tenants would."""

    alias = "other"

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        self.calls.append((model, hints))
        return self.alias

    calls: list[Any] = []


class TestRouter:
    @pytest.fixture(autouse=True)
    def _router(self, settings: Any) -> None:
        Router.calls, Router.alias = [], "other"
        settings.DATABASE_ROUTERS = ["tests.parts.databases.test_choose.Router"]

    def test_the_placement_router_asks_the_database_routers_of_django(self, set_placement: SetPlacement) -> None:
        set_placement("router")
        assert databases_of([noop.using(queue_name="mail").defer()]) == ["other"]
        assert Router.calls[0] == (Job, {"task": "tests.app.jobs.noop", "queue_name": "mail"})
        Router.alias = "default"
        assert noop.defer_many([{}]).databases == ["default"]

    def test_a_routed_job_is_in_the_transaction_of_its_database(self, set_placement: SetPlacement) -> None:
        set_placement("router")
        with transaction.atomic(using="other"):
            noop.defer()
            transaction.set_rollback(True, using="other")
        assert count_by_database() == {"default": 0, "other": 0}

    def test_the_router_of_the_package_leaves_the_choice_to_the_next_router(
        self, set_placement: SetPlacement, settings: Any
    ) -> None:
        settings.DATABASE_ROUTERS = ["django_skipqueue.routers.QueueRouter", "tests.parts.databases.test_choose.Router"]
        set_placement("router")
        assert databases_of([noop.defer()]) == ["other"]

    def test_a_database_without_a_queue_that_a_router_chooses_is_refused(self, set_placement: SetPlacement) -> None:
        set_placement("router", DATABASES=("default",))
        with pytest.raises(InvalidOption, match=r"chose the database 'other', but jobs may only be put into default"):
            noop.defer()
        assert count_by_database() == {"default": 0, "other": 0}


def by_region(call: CallToPlace) -> str:
    """A function for the setting PLACEMENT."""
    return {"eu": "other"}.get(call.kwargs.get("region", ""), "default")


def test_a_function_can_choose_the_database(set_placement: SetPlacement, registry: Registry) -> None:
    send = job(queue_name="mail")(mail)
    for placement in (by_region, "tests.parts.databases.test_choose.by_region"):
        set_placement(placement)
        assert databases_of([send.defer(region="eu"), send.defer(region="us")]) == ["other", "default"]
        assert send.defer_many([{"region": "us"}, {"region": "eu"}]).databases == ["default", "other"]
    set_placement(lambda call: "nowhere")
    with pytest.raises(InvalidOption, match="chose the database 'nowhere'"):
        send.defer(region="eu")


class TestRetiring:
    """Only one unfinished job has a unique key, also while a database is retiring."""

    @pytest.fixture(autouse=True)
    def _key_is_held_in_a_retiring_database(self, set_placement: SetPlacement) -> None:
        set_placement(DATABASES=("other",))
        self.task = job(unique=unique_by("account_id"))(pay)
        self.old_job = self.task.defer(1)
        set_placement(DATABASES=("default",), RETIRING=("other",))

    def test_a_job_in_a_retiring_database_that_holds_a_unique_key_is_found(self) -> None:
        second_call = self.task.defer(1)
        assert (second_call.created, second_call.handle) == (False, self.old_job.handle)
        two_calls = self.task.defer_many([(1,), (2,)])
        assert two_calls.handles[0] == self.old_job.handle
        assert (two_calls.databases, two_calls.outcomes) == (["other", "default"], ["existing", "created"])

    def test_on_conflict_applies_to_a_job_in_a_retiring_database(self) -> None:
        replaced = self.task.using(on_conflict="replace").defer(1, payment_id=7)
        assert (replaced.handle, replaced.kwargs) == (self.old_job.handle, {"payment_id": 7})
        with pytest.raises(UniqueKeyTaken):
            self.task.using(on_conflict="raise").defer(1)

    def test_a_finished_job_in_a_retiring_database_holds_no_key(self) -> None:
        self.old_job.discard()
        assert self.task.defer(1).handle.startswith("default:")

    def test_jobs_with_other_keys_go_to_the_new_database(self) -> None:
        assert databases_of([self.task.defer(2), noop.defer()]) == ["default", "default"]
        assert databases_of([noop.using(database="other").defer()]) == ["other"], (
            "a retiring database can still be named"
        )


def test_a_handle_names_a_job(set_placement: SetPlacement) -> None:
    job_in_default, job_in_other = noop.defer(), noop.using(database="other").defer()
    assert (job_in_default.handle, job_in_other.handle) == (f"default:{job_in_default.pk}", f"other:{job_in_other.pk}")
    assert Job.objects.by_handle(job_in_other.handle) == job_in_other
    assert Job.objects.by_handle(str(job_in_default.pk)) == job_in_default
    with pytest.raises(Job.DoesNotExist):
        Job.objects.by_handle(f"other:{job_in_other.pk + 1}")
    for invalid_handle in ("", "other", "other:", ":1", "other:x", "other:-1", "nowhere:1", "other:\u0661"):
        with pytest.raises(InvalidOption):
            Job.objects.by_handle(invalid_handle)
