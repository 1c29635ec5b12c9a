"""Jobs that wait for other jobs, and chains of jobs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.dispatch import Signal

from django_skipqueue import Batch, chain, signals
from django_skipqueue.events.events import Event, JobsAdmitted
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Dependency, Job, JobBatch
from django_skipqueue.parts.batches import dependencies
from django_skipqueue.parts.batches.dependencies import admit_dependants, forget_dependants
from django_skipqueue.parts.batches.events import DependantsDiscarded
from django_skipqueue.parts.batches.options import AfterFailure
from django_skipqueue.parts.batches.values import BatchProgress
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.worker.by_hand import run

from ...app import jobs
from ...app.rows import make_job, multiply
from ...app.sessions import Session
from ...app.waiting import wait_until
from ...harness.processes import ManagePy
from .jobs import callbacks_of, see_results

store = Store("default")

pytestmark = pytest.mark.django_db


def run_first_job() -> Job:
    """Run the first job of the queue, as a worker does."""
    [job] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(job)
    return job


def admit_if_due() -> dict[str, int]:
    """Admit as a supervisor does. Returns the number of admitted jobs, by queue."""
    due = store.next_due()
    return dict(store.admit().by_queue) if due is not None and due <= 0 else {}


def ids_with_unmet_dependencies() -> list[int]:
    return list(Dependency.objects.filter(is_met=False).values_list("job_id", flat=True))


def read_status(job: Job) -> str:
    return str(Job.objects.values_list("status", flat=True).get(pk=job.pk))


class TestWait:
    def test_a_job_waits_for_all_of_its_predecessors(self) -> None:
        first, second = jobs.noop.defer(), jobs.noop.defer()
        dependant = jobs.noop.using(after=[first, second.pk]).defer()
        assert dependant.status == read_status(dependant) == "blocked"
        assert not admit_if_due()
        run_first_job()
        assert not admit_if_due()
        assert read_status(dependant) == "blocked"
        run_first_job()
        assert admit_if_due() == {"default": 1}
        assert read_status(dependant) == "queued"
        assert not admit_if_due()
        assert run_first_job().pk == dependant.pk

    def test_a_job_does_not_wait_for_a_finished_job(self) -> None:
        first = jobs.noop.defer()
        run_first_job()
        dependant = jobs.noop.using(after=[first]).defer()
        assert dependant.status == read_status(dependant) == "queued"
        assert dependant.held is None

    def test_many_jobs_wait_for_the_same_predecessors(self) -> None:
        predecessors = jobs.noop.defer_many([()] * 3)
        waiting = jobs.add.using(after=predecessors).defer_many([(n,) for n in range(4)])
        with_unique_keys = jobs.add.using(after=predecessors, unique_key=lambda a: f"k{a}").defer_many([(1,), (2,)])
        assert {read_status(job) for job in Job.objects.filter(pk__in=[*waiting, *with_unique_keys])} == {"blocked"}
        assert Dependency.objects.count() == 6 * 3
        for _ in range(3):
            run_first_job()
        assert admit_if_due() == {"default": 6}

    def test_a_call_whose_job_exists_already_adds_no_dependency(self) -> None:
        predecessor = jobs.noop.defer()
        existing = jobs.noop.using(unique_key="k").defer()
        assert jobs.noop.using(unique_key="k", after=[predecessor]).defer().pk == existing.pk
        assert jobs.noop.using(unique_key="k", after=[predecessor]).defer_many([()]) == [existing.pk]
        assert not Dependency.objects.exists()

    def test_a_job_waits_for_its_time_and_then_for_its_predecessor(self) -> None:
        predecessor = jobs.noop.using(priority=-5).defer()
        dependant = jobs.noop.using(after=[predecessor], run_after=timedelta(hours=1)).defer()
        assert read_status(dependant) == "scheduled"
        assert dependant.run_now()
        assert read_status(dependant) == "blocked"
        run_first_job()
        assert admit_if_due() == {"default": 1}

    def test_a_scheduled_job_remembers_that_its_predecessor_has_ended(self) -> None:
        predecessor = jobs.noop.defer()
        dependant = jobs.noop.using(after=[predecessor], run_after=timedelta(hours=1)).defer()
        run_first_job()
        admit_if_due()
        assert read_status(dependant) == "scheduled"
        assert dependant.run_now()
        assert read_status(dependant) == "queued"

    def test_a_dependant_that_is_retried_does_not_wait_again(self) -> None:
        predecessor = jobs.noop.defer()
        dependant = jobs.fail.using(after=[predecessor]).defer()
        run_first_job()
        admit_if_due()
        run_first_job()
        assert read_status(dependant) == "queued"
        assert run_first_job().pk == dependant.pk

    @pytest.mark.parametrize("after", [3, "ab", [None], ["x"], [object()], [True], [0], [10**30]])
    def test_after_refuses_a_value_that_is_not_a_list_of_jobs(self, after: Any) -> None:
        with pytest.raises(InvalidOption, match="after must be a list of jobs"):
            jobs.noop.using(after=after)

    def test_an_unknown_policy_for_failures_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="after_failure must be one of wait, discard, run"):
            jobs.noop.using(after_failure="go on")  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="after_failure must be one of"):
            jobs.noop.s().after(1, on_failure="go on")  # type: ignore[arg-type]

    def test_a_job_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="after names job 1000000000000000, which does not exist"):
            jobs.noop.using(after=[10**15]).defer()
        with pytest.raises(InvalidOption, match="job 1000000000000000"):
            jobs.noop.using(after=[10**15]).defer_many([(), ()])
        assert not Job.objects.exists()
        assert not Dependency.objects.exists()

    def test_defer_many_refuses_a_call_that_waits_for_other_jobs(self) -> None:
        with pytest.raises(InvalidOption, match="call 1: it has other options"):
            jobs.add.defer_many([(0,), jobs.add.s(1).after(jobs.noop.defer())])
        assert not Job.objects.filter(task=jobs.add.name).exists()

    def test_a_predecessor_given_twice_is_stored_once(self) -> None:
        predecessor = jobs.noop.defer()
        dependant = jobs.noop.using(after=[predecessor, predecessor.pk, predecessor]).defer()
        assert list(Dependency.objects.values_list("job_id", "needs_job_id")) == [(dependant.pk, predecessor.pk)]

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_job_of_another_database_is_refused(self) -> None:
        predecessor = make_job(id=1_000_000_000)  # no job gets this id
        make_job(using="other", id=predecessor.pk)
        for call in (jobs.noop.using(after=[predecessor], database="other").s(), jobs.noop.s().after(predecessor)):
            with pytest.raises(InvalidOption, match=f"after names job {predecessor.pk} of the database 'default', but"):
                call.in_database("other").defer()
        with pytest.raises(InvalidOption, match="Defer both jobs in one database"):
            jobs.noop.using(after=[predecessor], database="other").defer_many([(), ()])
        assert Job.objects.using("other").count() == 1
        dependant = jobs.noop.using(database="other", after=[predecessor.pk]).defer()
        assert dependant.status == "blocked", "an id without a database is an id in the database of the call"

    def test_a_waiting_job_whose_arguments_are_replaced_still_waits(self) -> None:
        predecessor = jobs.noop.defer()
        dependant = jobs.add.using(after=[predecessor], unique_key="k").defer(1)
        replacing = jobs.add.using(unique_key="k", on_conflict="replace")
        assert replacing.defer(2).pk == dependant.pk
        assert read_status(dependant) == "blocked"
        assert list(replacing.defer_many([(3,)])) == [dependant.pk]
        assert read_status(dependant) == "blocked"
        run_first_job()
        assert admit_if_due() == {"default": 1}
        with pytest.raises(InvalidOption, match="do not go together"):
            replacing.using(after=[predecessor]).defer(4)
        with pytest.raises(InvalidOption, match="do not go together"):
            replacing.using(after=[predecessor]).defer_many([(4,)])

    def test_deferring_a_job_without_dependencies_sends_one_statement(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(1):
            jobs.noop.defer()


Received = list[tuple[str, dict[str, Any]]]
RecordSignals = Callable[[Signal], Received]


@pytest.fixture
def record_signals() -> Iterator[RecordSignals]:
    """A function that connects to a signal, and returns a list to which each sender with its arguments is added."""
    with ExitStack() as stack:

        def connect(signal: Signal) -> Received:
            received: Received = []

            def receiver(sender: str, signal: Signal, **arguments: Any) -> None:
                received.append((sender, arguments))

            signal.connect(receiver, weak=False)
            stack.callback(signal.disconnect, receiver)
            return received

        yield connect


class TestFailure:
    @pytest.mark.parametrize(("policy", "expected"), [("wait", "blocked"), ("discard", "discarded"), ("run", "queued")])
    @pytest.mark.parametrize("end", ["fail", "discard", "delete", "prune"])
    def test_the_policy_decides_after_a_predecessor_that_does_not_complete(
        self, settings: Any, policy: AfterFailure, expected: str, end: str
    ) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
        predecessor = jobs.fail.using(max_attempts=1).defer()
        dependant = jobs.noop.using(after=[predecessor], after_failure=policy).defer()
        predecessor_id = predecessor.pk
        if end == "discard":
            assert predecessor.discard()
        elif end == "delete":
            predecessor.delete()
        else:
            run_first_job()
            if end == "prune":
                assert store.prune() == {"failed": 1}
        admit_if_due()
        assert read_status(dependant) == expected
        if policy == "discard":
            dependant.refresh_from_db()
            assert dependant.last_error == f"Discarded: it needs job {predecessor_id}, which has not completed."
            assert dependant.finished_at is not None
        assert not admit_if_due()

    def test_a_completed_predecessor_that_is_pruned_at_once_lets_its_dependant_run(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        predecessor = jobs.noop.defer()
        dependant = jobs.noop.using(after=[predecessor]).defer()
        run_first_job()
        assert store.prune() == {"completed": 1}
        assert admit_if_due() == {"default": 1}
        assert read_status(dependant) == "queued"

    def test_a_dependant_with_the_policy_wait_runs_after_the_retry_of_its_predecessor(self) -> None:
        predecessor = jobs.fail.using(max_attempts=1).defer()
        dependant = jobs.noop.using(after=[predecessor]).defer()
        run_first_job()
        assert not admit_if_due()
        predecessor.refresh_from_db()
        assert predecessor.retry()
        assert not admit_if_due()
        Job.objects.filter(pk=predecessor.pk).update(task="tests.app.jobs.noop", kwargs={})
        run_first_job()
        assert admit_if_due() == {"default": 1}
        assert read_status(dependant) == "queued"

    def test_a_dependant_with_the_policy_run_does_not_wait_for_a_retry(self) -> None:
        predecessor, second_predecessor = jobs.fail.using(max_attempts=1).defer(), jobs.noop.using(priority=-1).defer()
        dependant = jobs.noop.using(after=[predecessor, second_predecessor], after_failure="run").defer()
        run_first_job()
        assert not admit_if_due()
        predecessor.refresh_from_db()
        assert predecessor.retry()
        assert predecessor.postpone(timedelta(days=1))
        run_first_job()
        assert admit_if_due() == {"default": 1}
        assert (read_status(predecessor), read_status(dependant)) == ("scheduled", "queued")

    def test_a_discard_discards_the_rest_of_the_chain_and_ends_the_batch(self) -> None:
        with Batch(on_failure=jobs.echo.s("bad")) as batch:
            chain(jobs.fail.using(max_attempts=1).s(), jobs.noop, jobs.noop, jobs.noop, after_failure="discard").defer()
        run_jobs()
        assert sorted(batch.jobs.values_list("status", flat=True)) == ["completed", *["discarded"] * 3, "failed"]
        assert callbacks_of() == [("echo", ["bad"])]

    def test_a_long_chain_is_discarded_without_a_pause(self) -> None:
        with Batch(on_finish=jobs.noop) as batch:
            steps = [jobs.noop] * (dependencies.MOST_ROUNDS * 3)
            chain(jobs.fail.using(max_attempts=1).s(), *steps, after_failure="discard").defer()
        run_first_job()
        admissions = 0
        while store.admit().has_changed_jobs:
            admissions += 1
        assert admissions == 3, "each admission discards MOST_ROUNDS steps"
        assert not Job.objects.blocked().exists()
        run_jobs()
        assert batch.progress().is_finished

    def test_run_jobs_runs_a_long_chain_to_its_end(self) -> None:
        with Batch() as batch:
            steps = [jobs.noop] * (dependencies.MOST_ROUNDS * 3)
            chain(jobs.fail.using(max_attempts=1).s(), *steps, after_failure="discard").defer()
        run_jobs()
        assert batch.progress() == BatchProgress(
            total=61, done=61, completed=0, failed=1, discarded=60, is_finished=True
        )

    def test_a_discarded_dependant_has_a_log_line_and_a_signal(
        self, caplog: pytest.LogCaptureFixture, record_signals: RecordSignals
    ) -> None:
        received = record_signals(signals.dependant_discarded)
        predecessor = jobs.fail.using(max_attempts=1).defer()
        discarded_after_failure = jobs.noop.using(after=[predecessor], after_failure="discard")
        first, second = discarded_after_failure.defer(), discarded_after_failure.using(queue_name="mail").defer()
        assert second.discard(by="anna")
        run_first_job()
        admit_if_due()
        [(sender, arguments)] = received
        assert (sender, arguments["database"]) == (first.task, "default")
        job = arguments["job"]
        assert (job.id, job.queue_name, job.status, job.needs_job_id) == (
            first.pk,
            "default",
            "discarded",
            predecessor.pk,
        )
        [record] = [record for record in caplog.records if record.__dict__["event"] == "dependant_discarded"]
        assert record.getMessage() == f"dependant discarded task={first.task} id={first.pk} needs={predecessor.pk}"
        assert (record.__dict__["job_id"], record.__dict__["queue_name"]) == (first.pk, "default")

    def test_a_job_that_is_discarded_when_it_is_deferred_has_a_signal_after_the_commit(
        self, record_signals: RecordSignals, django_capture_on_commit_callbacks: Any
    ) -> None:
        predecessor = make_job("failed")
        received = record_signals(signals.dependant_discarded)
        with django_capture_on_commit_callbacks(execute=True):
            dependant = jobs.noop.using(after=[predecessor], after_failure="discard").defer()
            assert dependant.status == "discarded"
            assert not received
        assert [event["job"].id for _, event in received] == [dependant.pk]

    def test_the_jobs_that_a_worker_admits_and_discards_are_sent_as_events(self) -> None:
        sent_events: list[Event] = []
        predecessor = jobs.fail.using(max_attempts=1).defer()
        runs_after_failure = jobs.noop.using(after=[predecessor], after_failure="run").defer()
        dependant = jobs.noop.using(after=[predecessor], after_failure="discard").defer()
        run_first_job()
        admit_dependants(Store("default", send=sent_events.append), [predecessor.pk])
        assert read_status(runs_after_failure) == "queued"
        [discarded, admitted] = sent_events
        assert isinstance(discarded, DependantsDiscarded)
        assert [job.id for job in discarded.jobs] == [dependant.pk]
        assert admitted == JobsAdmitted("default", {"default": 1})

    def test_a_manual_retry_of_a_discarded_dependant_runs_it(self) -> None:
        predecessor = jobs.fail.using(max_attempts=1).defer()
        dependant = jobs.noop.using(after=[predecessor], after_failure="discard").defer()
        run_first_job()
        admit_if_due()
        dependant.refresh_from_db()
        assert dependant.retry()
        assert read_status(dependant) == "queued"

    def test_a_waiting_job_that_was_discarded_and_is_retried_waits_again(self) -> None:
        predecessor = jobs.noop.defer()
        dependant = jobs.noop.using(after=[predecessor]).defer()
        assert dependant.discard()
        assert dependant.retry()
        assert read_status(dependant) == "blocked"
        assert dependant.discard()
        run_first_job()
        assert not admit_if_due()
        assert read_status(dependant) == "discarded"
        assert dependant.retry()
        assert read_status(dependant) == "queued"


class TestChain:
    def test_each_step_of_a_chain_runs_after_the_step_before_it(self) -> None:
        chain_jobs = chain(jobs.add.s(1, 2), [jobs.add.s(3), jobs.add.s(4)], see_results).defer()
        assert [job.status for job in chain_jobs] == ["queued", "blocked", "blocked", "blocked"]
        run = run_jobs()
        assert [job.pk for job in run] == [job.pk for job in chain_jobs]
        assert [job.result for job in run] == [3, 3, 4, [3, 4]]
        batch = JobBatch.objects.get()
        assert (batch.name, batch.completed) == ("add → see_results", 4)
        assert {job.batch_id for job in chain_jobs} == {batch.pk}

    def test_the_calls_of_a_step_are_inserted_together(self, django_assert_max_num_queries: Any) -> None:
        thirty_calls = [jobs.add.s(number) for number in range(30)]
        of_two_unique_keys = [jobs.add.using(unique_key=lambda a: f"k{a % 2}").s(number) for number in range(4)]
        with django_assert_max_num_queries(40):
            chain_jobs = chain(thirty_calls, [*thirty_calls, jobs.noop, *of_two_unique_keys], see_results).defer()
        numbers = [[number] for number in range(30)]
        assert [job.args for job in chain_jobs] == [*numbers, *numbers, [], [0], [1], [0], [1], []]
        assert chain_jobs[61].pk == chain_jobs[63].pk, "both calls have the same unique key"
        assert {job.status for job in chain_jobs[:30]} == {"queued"}
        assert {job.status for job in chain_jobs[30:]} == {"blocked"}
        *_, last = run_jobs()
        assert last.result == [*range(30), None, 0, 1]

    def test_a_chain_that_is_deferred_in_a_batch_belongs_to_it(self) -> None:
        with Batch(name="mine") as batch:
            chain_jobs = chain(jobs.noop, jobs.noop).defer()
        assert {job.batch_id for job in chain_jobs} == {batch.id}
        assert JobBatch.objects.count() == 1

    @pytest.mark.parametrize(("steps", "message"), [([], "at least one"), ([[]], "Step 1"), ([3], "step 1 of the")])
    def test_an_invalid_step_of_a_chain_is_refused(self, steps: Any, message: str) -> None:
        with pytest.raises(InvalidOption, match=message):
            chain(*steps)
        with pytest.raises(InvalidOption, match="database must be"):
            chain(jobs.noop, database="nowhere")

    def test_the_results_of_many_predecessors_are_complete(self) -> None:
        multiply(make_job("completed", result=1), 1_200)
        predecessors = list(Job.objects.values_list("pk", flat=True))
        see_results.using(after=predecessors).defer()
        [dependant] = run_jobs()
        assert dependant.result == [1] * 1_201

    def test_the_results_of_a_job_raise_an_error_if_a_predecessor_was_deleted(self) -> None:
        chain_jobs = chain(jobs.add.s(1), see_results.using(max_attempts=1)).defer()
        run_first_job()
        assert admit_if_due() or read_status(chain_jobs[1]) == "queued"
        chain_jobs[0].delete()
        run_first_job()
        chain_jobs[1].refresh_from_db()
        assert chain_jobs[1].last_error.startswith("ResultLost: ")


class TestClean:
    def test_dependencies_are_deleted_with_the_job_that_waited(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        chain(jobs.noop, jobs.noop, jobs.noop).defer()
        run_jobs()
        assert Dependency.objects.count() == 2
        store.prune()
        assert not Dependency.objects.exists()

    def test_dependencies_of_a_deleted_job_are_deleted_once_its_predecessor_ends(self) -> None:
        predecessor = jobs.noop.defer()
        jobs.noop.using(after=[predecessor]).defer().delete()
        run_first_job()
        assert not admit_if_due()
        assert not Dependency.objects.exists()

    def test_a_discarded_job_has_no_unmet_dependencies(self) -> None:
        first, second = jobs.fail.using(max_attempts=1).defer(), jobs.noop.defer()
        dependant = jobs.noop.using(after=[first, second], after_failure="discard").defer()
        run_first_job()
        admit_if_due()
        assert read_status(dependant) == "discarded"
        assert not ids_with_unmet_dependencies()
        run_first_job()
        assert store.next_due() is None

    def test_dependencies_without_a_waiting_job_do_not_delay_other_jobs(self) -> None:
        """Unmet dependencies of a job that no longer waits, or was deleted, do not delay other jobs."""
        ended, needed = jobs.noop.defer(), jobs.noop.defer()
        deleted = jobs.noop.using(after=[ended]).defer()
        discarded = jobs.noop.using(after=[ended]).defer()
        dependant = jobs.noop.using(after=[needed]).defer()
        deleted.delete()
        Job.objects.filter(pk=discarded.pk).update(held=None, gate=None, status="discarded", finished_at=Now())
        run_first_job()
        run_first_job()
        assert store.admit(limit=1).by_queue == {}  # the first admission only clears dependencies
        assert store.admit(limit=1).by_queue == {"default": 1}
        assert read_status(dependant) == "queued"
        assert store.next_due() is None
        assert list(Dependency.objects.values_list("job_id", flat=True)) == [discarded.pk, dependant.pk]

    def test_one_call_clears_a_limited_number_of_dependencies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        predecessor = jobs.noop.defer()
        ids = list(jobs.noop.using(after=[predecessor]).defer_many([()] * 5))
        Job.objects.filter(pk__in=ids).delete()
        run_first_job()
        monkeypatch.setattr(dependencies, "MOST_ROUNDS", 2)
        assert forget_dependants(store, [predecessor.pk], limit=2)
        assert len(ids_with_unmet_dependencies()) == 1
        assert forget_dependants(store, [predecessor.pk], limit=2)
        assert not forget_dependants(store, [predecessor.pk], limit=2)

    def test_a_job_can_need_thousands_of_jobs(self) -> None:
        predecessor = jobs.noop.defer()
        with connection.cursor() as cursor:
            # make PostgreSQL choose its slowest plan
            cursor.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
            cursor.execute(
                """
                INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, run_after,
                    metadata)
                SELECT queue_name, task, args, kwargs, status, priority, max_attempts, run_after, metadata
                FROM skipqueue_job, generate_series(1, 33000)
                """
            )
        dependant = jobs.noop.using(after=list(Job.objects.values_list("pk", flat=True))).defer()
        assert read_status(dependant) == "blocked"
        assert Dependency.objects.filter(job_id=dependant.pk).count() == 33_001
        assert predecessor.discard()


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    def test_a_job_whose_row_is_locked_does_not_delay_other_jobs(self, session: Callable[[], Session]) -> None:
        first, second = jobs.noop.defer(), jobs.noop.defer()
        locked, unlocked = (jobs.noop.using(after=[predecessor]).defer() for predecessor in (first, second))
        run_first_job()
        run_first_job()
        other_session = session()
        other_session.begin()
        other_session(lambda: Job.objects.filter(pk=locked.pk).update(metadata={}))
        assert store.admit(limit=1).by_queue == {}
        assert store.admit(limit=1).by_queue == {"default": 1}
        assert read_status(unlocked) == "queued"
        assert store.next_due() == 0.0, "the locked job is ready to be admitted"
        other_session.rollback()
        assert store.admit().by_queue == {"default": 1}
        assert read_status(locked) == "queued"

    def test_a_needed_job_is_not_pruned_before_the_enqueue_commits(
        self, session: Callable[[], Session], settings: Any
    ) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        predecessor = jobs.noop.defer()
        other_session = session()
        other_session.begin()
        dependant: Job = other_session(jobs.noop.using(after=[predecessor], after_failure="discard").defer)
        assert run_first_job().pk == predecessor.pk, "a claim and a settle do not wait for the enqueue"
        assert read_status(predecessor) == "completed"
        assert store.prune() == {}
        other_session.commit()
        assert store.prune() == {"completed": 1}
        assert admit_if_due() == {"default": 1}
        assert read_status(dependant) == "queued"

    def test_an_enqueue_sees_that_a_needed_job_is_being_pruned(
        self, session: Callable[[], Session], settings: Any
    ) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        predecessor = jobs.noop.defer()
        run_first_job()
        pruning = session()
        pruning.begin()
        assert pruning(store.prune) == {"completed": 1}
        enqueuing = session()
        enqueue = enqueuing.start(jobs.noop.using(after=[predecessor]).defer)
        enqueuing.wait_until_blocked()
        pruning.commit()
        with pytest.raises(InvalidOption, match="which does not exist"):
            enqueue.result(10)
        assert not Dependency.objects.exists()

    def test_admitting_does_not_wait_for_a_prune_of_the_predecessor(
        self, session: Callable[[], Session], settings: Any
    ) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        predecessor = jobs.noop.defer()
        dependant = jobs.noop.using(after=[predecessor]).defer()
        run_first_job()
        other_session = session()
        other_session.begin()
        assert other_session(store.prune) == {"completed": 1}
        assert admit_if_due() == {"default": 1}, "the deletion is not committed: the gate sees a completed job"
        other_session.commit()
        assert read_status(dependant) == "queued"
        assert not admit_if_due()
        assert not ids_with_unmet_dependencies()

    def test_two_predecessors_that_end_at_once_admit_their_dependant(
        self, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second session skips the locked row or sees the first commit: one of them admits the job."""
        first, second = jobs.noop.defer(), jobs.noop.defer()
        dependant = jobs.noop.using(after=[first, second]).defer()
        run_first_job()
        other_session = session()
        other_session.begin()
        assert other_session(admit_dependants, store, [first.pk]).admitted == {}
        run_first_job()
        assert admit_dependants(store, [second.pk]).admitted == {}, "the row is locked"
        other_session.commit()
        assert read_status(dependant) == "blocked"
        assert admit_if_due() == {"default": 1}

    def test_a_predecessor_that_ends_while_its_dependant_is_locked_is_not_missed(
        self, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = jobs.noop.defer(), jobs.noop.defer()
        dependant = jobs.noop.using(after=[first, second]).defer()
        run_first_job()
        other_session = session()
        original_rows = Store.rows

        def end_after_the_lock(self: Store, statement: str, values: Any = None) -> Any:
            result = original_rows(self, statement, values)
            if "FOR NO KEY UPDATE OF job SKIP LOCKED" in statement:
                monkeypatch.setattr(Store, "rows", original_rows)
                other_session(run_first_job)
            return result

        monkeypatch.setattr(Store, "rows", end_after_the_lock)
        assert admit_dependants(store, [first.pk]).admitted == {"default": 1}
        assert read_status(dependant) == "queued"

    def test_a_job_whose_enqueue_commits_after_the_end_of_its_predecessor_is_admitted(
        self, session: Callable[[], Session]
    ) -> None:
        predecessor = jobs.noop.defer()
        with transaction.atomic():
            dependant = jobs.noop.using(after=[predecessor]).defer()
            other_session = session()
            other_session(run_first_job)
        assert read_status(dependant) == "blocked"
        assert admit_if_due() == {"default": 1}

    def test_a_worker_runs_a_chain_without_waiting_for_the_supervisor(self, runworker: Callable[..., ManagePy]) -> None:
        gate_admits_nothing = """
        from django_skipqueue.parts.batches.dependencies import DependencyGate
        DependencyGate._ready = lambda self, dependencies, *, limit: ([], 0)
        """
        runworker("--concurrency", "2", jobs=gate_admits_nothing)
        chain_jobs = chain(*[jobs.noop] * 20).defer()
        wait_until(lambda: Job.objects.completed().count() == 20, "the chain is over")
        times: list[Any] = list(Job.objects.order_by("id").values_list("started_at", "finished_at"))
        assert all(finished_at <= next_started_at for (_, finished_at), (next_started_at, _) in pairwise(times))
        assert JobBatch.objects.get().pk == chain_jobs[0].batch_id

    def test_a_drain_runs_waiting_jobs(self, runworker: Callable[..., ManagePy]) -> None:
        predecessor = jobs.noop.defer()
        jobs.noop.using(after=[predecessor]).defer()
        chain(jobs.noop, [jobs.noop, jobs.noop], jobs.noop).defer()
        assert runworker("--drain").wait() == 0
        assert Job.objects.completed().count() == 6
