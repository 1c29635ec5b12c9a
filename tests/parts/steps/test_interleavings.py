"""Claim, record, settle, release, recover, cancel, retry, signal, wake and prune, in any order and at the same time.

Three sessions of PostgreSQL run the functions of the part and of the core. A session's transaction may stay open while
the other sessions go on, and their statements may wait for its end. Attempts run step by step. If the job of an attempt
is recovered, the attempt does not notice it, and goes on.

SKIPQUEUE_EXAMPLES=1000 runs 1,000 random sequences, and shortens a sequence that fails. Without it, the test runs a few
sequences that are the same every time.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from django_skipqueue import JobContext, job
from django_skipqueue.events.events import AttemptsRetrying
from django_skipqueue.exceptions import LeaseLost, StepFailed
from django_skipqueue.models import FINISHED, Dependency, Job, JobBatch, JobChild, JobSignal, JobStep, Worker
from django_skipqueue.parts.steps.signals import send_signal
from django_skipqueue.parts.steps.wake import WaitObserver, WakeSettled
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.outcomes import EndAttempt, Outcome, Settlement
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ...app.models import Ledger
from ...app.rows import make_worker
from ...app.sessions import Session
from ...app.waiting import DEADLINE

EXAMPLES = int(os.environ.get("SKIPQUEUE_EXAMPLES", "0"))

store = Store("default")

WORKERS = ("a:000000000001", "b:000000000002")

ACTS = (
    *("advance",) * 4,
    *("work", "settle", "signal", "recover", "freeze", "end") * 2,
    *("claim", "fail", "release", "gates", "prune", "let_the_time_of_signals_pass", "operate"),
)
"""The methods of `Interleaved` that a random sequence calls, some of them more often."""

VERBS = ("retry", "cancel", "run_now", "retry")


@job(name="steps.interleaved_child", max_attempts=1_000)
def child(number: int) -> int:
    return number


def write(job_id: int, entry: str) -> str:
    Ledger.objects.create(job_id=job_id, entry=entry)
    return entry


def children_of(context: JobContext) -> Any:
    return context.run_all("children", [child.s(1), child.s(2)])


PLAN: dict[str, Callable[[JobContext], Any]] = {
    "first": lambda context: context.step("first", write, context.job_id, "first", atomic=True),
    "go": lambda context: context.wait("go"),
    "items": lambda context: context.each(
        "items", [1, 2], lambda item: write(context.job_id, f"item {item}"), atomic=True
    ),
    "children": children_of,
    "answer": lambda context: context.wait("answer", timeout=3600),
    "last": lambda context: context.step("last", write, context.job_id, "last", atomic=True),
}
"""The steps of a job, by their names."""

SIGNALS = ("go", "answer")

EFFECTS = {"first": ("first",), "items": ("item 1", "item 2"), "last": ("last",)}
"""The rows that each step writes, in the transaction that records the step."""


@job(takes_context=True, name="steps.interleaved", max_attempts=1_000)
def flow(context: JobContext) -> Any:
    return [call(context) for call in PLAN.values()]


class Line(Session):
    """A session whose transactions look like the transaction of a `TestCase`, so that a task may wait within them."""

    operation: "Operation | None" = None
    """The operation that waits for a lock, or that the open transaction has done."""

    def begin(self) -> None:
        self._atomic = transaction.atomic()
        self._atomic._from_testcase = True  # type: ignore[attr-defined]
        self(self._atomic.__enter__)

    @property
    def is_open(self) -> bool:
        """Whether the session is in a transaction, and does not wait for a lock."""
        return self.operation is not None and self.operation.stays_open and self.operation.future.done()


@dataclass(eq=False)
class Operation:
    future: "Future[Any]"
    on_commit: Callable[[Any], object]
    """Called with the result, once it is committed."""
    on_rollback: Callable[[], object]
    """Called if the transaction is rolled back."""
    stays_open: bool


@dataclass(eq=False)
class Going:
    """An attempt that goes on, even if another worker holds the job now."""

    worker: str
    context: JobContext
    results: list[Any] = field(default_factory=list)
    outcome: Outcome | None = None
    is_busy: bool = False

    @property
    def id(self) -> int:
        return self.context.job_id

    @property
    def running(self) -> RunningAttempt:
        assert isinstance(self.context.running, RunningAttempt)
        return self.context.running


def attempt_of(worker: str, claimed_job: ClaimedJob) -> Going:
    running = RunningAttempt(claimed_job)
    running.worker, running.database, running.started = worker, "default", time.monotonic()
    attempt = Going(worker, JobContext.of(running, is_atomic=False))
    if claimed_job.task == "steps.interleaved_child":
        attempt.outcome = Outcome("completed", result=claimed_job.args[1:-1])
    return attempt


LOST = Outcome("failed", last_error="the lease is lost")


def next_step(attempt: Going) -> tuple[Any, Outcome | None]:
    """Run the next step of the plan in this session. Returns its result, and the outcome that ends the attempt."""
    name = list(PLAN)[len(attempt.results)]
    version_before = row_version(attempt.id, name)
    result: Any = None
    outcome: Outcome | None = None
    try:
        result = PLAN[name](attempt.context)
    except LeaseLost:
        return None, LOST
    except EndAttempt as end:
        outcome = end.outcome
    except StepFailed as error:
        outcome = Outcome("failed", last_error=type(error).__name__)
    if row_version(attempt.id, name) != version_before:
        lease = Job.objects.values_list("lease", flat=True).get(pk=attempt.id)
        assert lease == attempt.context.lease, "an attempt without the lease has recorded a step"
    return result, outcome


def row_version(job_id: int, name: str) -> Any:
    """The transaction that wrote the row of this step last, or None without such a row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text FROM skipqueue_step WHERE job_id = %s AND name = %s", [job_id, name])
        return cursor.fetchone()


class Interleaved(RuleBasedStateMachine):
    sessions: ClassVar[list[Line]] = []

    def __init__(self) -> None:
        super().__init__()
        for model in (Job, JobStep, JobSignal, JobChild, Dependency, JobBatch, Worker, Ledger):
            model._base_manager.all()._raw_delete("default")
        for worker in WORKERS:
            make_worker(id=worker, name=worker[0])
        self.flow_ids: list[int] = []
        self.attempts: list[Going] = []
        self.sent_payloads: dict[tuple[int, str], int] = {}
        """The payloads of committed signals."""
        self.recorded_results: dict[tuple[int, str], Any] = {}
        """The results of steps, as they were when they were recorded."""
        self.ids_left_to_gate: set[int] = set()
        """Jobs that only the gate can wake, because another process died or found the row locked."""

    # Sessions

    def run_in_session(
        self,
        call: Callable[[], Any],
        on_commit: Callable[[Any], object] = lambda _: None,
        on_rollback: Callable[[], object] = lambda: None,
        *,
        stays_open: bool = False,
    ) -> bool:
        """Run a function in a free session. Returns whether it is committed: its transaction may stay open."""
        free_sessions = [session for session in self.sessions if session.operation is None]
        if not free_sessions:
            on_rollback()
            return False
        session = free_sessions[0]
        stays_open = stays_open and len(free_sessions) > 1
        if stays_open:
            session.begin()
        session.operation = Operation(session.start(call), on_commit, on_rollback, stays_open)
        self.wait_for_sessions()
        return session.operation is None

    def wait_for_sessions(self) -> None:
        """Wait until each session has ended its work, or waits for a lock of another session."""
        for session in self.sessions:
            operation = session.operation
            if operation is None or session.is_open:
                continue
            deadline = time.monotonic() + DEADLINE
            while not wait([operation.future], timeout=0.01).done and not waits_for_a_lock(session.pid):
                assert time.monotonic() < deadline
            if operation.future.done():
                result = operation.future.result()
                if not operation.stays_open:
                    session.operation = None
                    operation.on_commit(result)

    @property
    def is_quiet(self) -> bool:
        """Whether no transaction is open."""
        return all(session.operation is None for session in self.sessions)

    def sessions_in_transaction(self) -> list[Line]:
        return [session for session in self.sessions if session.is_open]

    def end(self, choice: int, commits: bool) -> None:
        """Commit or roll back one of the open transactions."""
        if session := pick(self.sessions_in_transaction(), choice):
            operation, session.operation = session.operation, None
            assert operation is not None
            if commits:
                session.commit()
                operation.on_commit(operation.future.result())
            else:
                session.rollback()
                operation.on_rollback()
            self.wait_for_sessions()

    # Jobs

    @initialize(flow_count=st.integers(1, 2), initial_choices=st.lists(st.sampled_from(range(8)), max_size=3))
    def begin(self, flow_count: int, initial_choices: list[int]) -> None:
        """Defer jobs, and begin somewhere within their plan."""
        self.flow_ids = [flow.defer().pk for _ in range(flow_count)]
        for choice in initial_choices:
            self.signal(choice, stays_open=False)
            self.work(choice)

    @rule(act=st.sampled_from(ACTS), choice=st.sampled_from(range(8)), stays_open=st.booleans())
    def act(self, act: str, choice: int, stays_open: bool) -> None:
        """Call a method. The number `choice` selects one of the workers, attempts or jobs that there are."""
        getattr(self, act)(choice, stays_open)

    # Workers

    def attempts_between_steps(self) -> list[Going]:
        return [attempt for attempt in self.attempts if not attempt.is_busy and attempt.outcome is None]

    def attempts_to_settle(self) -> list[Going]:
        return [attempt for attempt in self.attempts if not attempt.is_busy and attempt.outcome is not None]

    def claim(self, choice: int, stays_open: bool) -> None:
        worker = WORKERS[choice % 2]

        def on_commit(claimed_jobs: list[ClaimedJob]) -> None:
            self.attempts += [attempt_of(worker, claimed_job) for claimed_job in claimed_jobs]

        self.run_in_session(
            lambda: store.claim(queue_names=["default"], limit=3, worker_id=worker), on_commit, stays_open=stays_open
        )

    def advance(self, choice: int, stays_open: bool) -> None:
        """Run the next step of an attempt. If its transaction is rolled back, the process has died in the middle."""
        if attempt := pick(self.attempts_between_steps(), choice):
            self.advance_attempt(attempt, stays_open=stays_open)

    def advance_attempt(self, attempt: Going, *, stays_open: bool = False) -> bool:
        def on_commit(step_result_and_outcome: tuple[Any, Outcome | None]) -> None:
            attempt.is_busy = False
            result, attempt.outcome = step_result_and_outcome
            if attempt.outcome is LOST:
                self.attempts.remove(attempt)
            elif attempt.outcome is None:
                attempt.results.append(result)
                if len(attempt.results) == len(PLAN):
                    attempt.outcome = Outcome("completed", result=json.dumps(attempt.results))

        attempt.is_busy = True
        return self.run_in_session(
            lambda: next_step(attempt), on_commit, lambda: self.attempts.remove(attempt), stays_open=stays_open
        )

    def settle(self, choice: int, stays_open: bool) -> None:
        """Write an outcome. Sometimes the worker dies right after this, and wakes no job."""
        if attempt := pick(self.attempts_to_settle(), choice):
            self.settle_attempt(attempt, choice, stays_open=stays_open, dies=choice % 4 == 3)

    def settle_attempt(self, attempt: Going, choice: int, *, stays_open: bool = False, dies: bool = False) -> bool:
        outcome = attempt.outcome
        assert outcome is not None
        if outcome.is_held and choice % 2:  # send the signal between the wait and its settle
            name = list(PLAN)[len(attempt.results)]
            self.send([attempt.id] if name in SIGNALS else [], name)

        def on_commit(settled_refs: set[int]) -> None:
            self.attempts.remove(attempt)
            if not settled_refs:
                return
            self.ids_left_to_gate.add(attempt.id)
            if not dies:
                observer = WaitObserver()
                ended_attempt = Attempt(attempt.running.job, outcome, 0.0, 0.0, attempt.worker, False, "default")
                observer.ended(AttemptsRetrying, [ended_attempt])
                if outcome.is_held and self.is_quiet:
                    self.ids_left_to_gate.discard(attempt.id)
                service = WakeSettled(store, observer)
                if observer.ids:
                    self.run_in_session(lambda: service.run(0.0))

        def on_rollback() -> None:
            attempt.is_busy = False

        attempt.is_busy = True
        settlement = Settlement(*attempt.running.job.ref, outcome)
        return self.run_in_session(lambda: store.settle([settlement]), on_commit, on_rollback, stays_open=stays_open)

    def work(self, choice: int, _: bool = False) -> None:
        """Let a worker claim jobs, run some steps of each, and settle the jobs that have ended."""
        self.claim(choice, stays_open=False)
        for attempt in [attempt for attempt in self.attempts if attempt.worker == WORKERS[choice % 2]]:
            for _step in range(choice):
                if not attempt.is_busy and attempt.outcome is None:
                    self.advance_attempt(attempt)
            if not attempt.is_busy and attempt.outcome is not None and attempt in self.attempts:
                self.settle_attempt(attempt, choice)

    def freeze(self, choice: int, stays_open: bool) -> None:
        """Recover the jobs of a worker while it runs a step. The worker goes on, and another worker claims its jobs."""
        self.claim(choice, stays_open=False)
        frozen = [attempt for attempt in self.attempts_between_steps() if attempt.worker == WORKERS[choice % 2]]
        for attempt in frozen[: choice // 2]:
            self.advance_attempt(attempt)
        self.recover(choice, stays_open)
        self.work(choice + 1)
        self.work(choice)

    def fail(self, choice: int, _: bool) -> None:
        """Let an attempt raise an error between two steps, and retry its job at once."""
        if attempt := pick(self.attempts_between_steps(), choice):
            attempt.outcome = Outcome("scheduled", last_error="ValueError")

    def release(self, choice: int, stays_open: bool) -> None:
        if attempt := pick(self.attempts_between_steps() + self.attempts_to_settle(), choice):
            self.attempts.remove(attempt)
            self.run_in_session(lambda: store.release([attempt.running.job.ref]), stays_open=stays_open)

    # Supervisors

    def recover(self, choice: int, stays_open: bool) -> None:
        """Recover the jobs of a frozen worker, whose attempts then go on."""
        self.run_in_session(lambda: store.recover(worker_ids=[WORKERS[choice % 2]]), stays_open=stays_open)

    def gates(self, _choice: int, _: bool) -> None:
        """Call the gates. After this, every job that can go on does, unless its row is locked."""

        def admit() -> None:
            while store.admit().has_changed_jobs:
                pass

        is_quiet = self.is_quiet
        self.run_in_session(admit)
        if is_quiet:
            self.ids_left_to_gate.clear()
            assert not self.ids_that_could_go_on()
            assert not self.ids_waiting_for_finished_children()
            assert not JobSignal.objects.exclude(job_id__in=Job.objects.values("pk")).filter(taken_at=None).exists()

    def prune(self, _choice: int, stays_open: bool) -> None:
        def prune() -> None:
            with override_settings(SKIPQUEUE={"RETENTION": {status.value: 0 for status in FINISHED}}):
                store.prune()

        self.run_in_session(prune, stays_open=stays_open)

    def let_the_time_of_signals_pass(self, _choice: int, _: bool) -> None:
        self.run_in_session(
            lambda: JobStep.objects.filter(is_waiting=True, name="answer").update(wakes_at="2020-01-01T00:00Z"),
            lambda _: self.ids_left_to_gate.update(self.ids_that_could_go_on()),
        )

    # Users and operators

    def signal(self, choice: int, stays_open: bool) -> None:
        """Send a signal to one of the flows, if possible to an unfinished one."""
        unfinished = Job.objects.unfinished().filter(pk__in=self.flow_ids).order_by("pk").values_list("pk", flat=True)
        id = pick(list(unfinished) or self.flow_ids, choice // 2)
        self.send([id], SIGNALS[choice % 2], stays_open=stays_open)

    def send(self, ids: list[int], name: str, *, stays_open: bool = False) -> None:
        payload = len(self.sent_payloads) + 1

        def on_commit(ids_sent_to: list[int]) -> None:
            for id in ids_sent_to:
                assert (id, name) not in self.sent_payloads, "a signal was sent twice"
                self.sent_payloads[id, name] = payload
                if not self.is_quiet:
                    self.ids_left_to_gate.add(id)

        self.run_in_session(lambda: send_signal(store, ids, name, payload), on_commit, stays_open=stays_open)

    def operate(self, choice: int, stays_open: bool) -> None:
        """Do what an operator can do with a job."""
        verb = VERBS[choice % len(VERBS)]

        def on_commit(changed_statuses: dict[int, str]) -> None:
            self.ids_left_to_gate |= changed_statuses.keys()

        id = pick(list(Job.objects.order_by("pk").values_list("pk", flat=True)), choice // 2)
        self.run_in_session(lambda: getattr(store, verb)([id] if id else []), on_commit, stays_open=stays_open)

    # What is true after every step

    def ids_that_could_go_on(self) -> set[int]:
        """The jobs that are blocked although their signal has come, or the time to wait for it is over."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT job.id FROM skipqueue_job AS job JOIN skipqueue_step AS step ON step.job_id = job.id"
                " LEFT JOIN skipqueue_signal AS signal ON (signal.job_id, signal.name) = (step.job_id, step.name)"
                " WHERE job.status = 'blocked' AND job.gate = 'held' AND step.recorded_at IS NULL AND"
                " step.kind = 'wait' AND (signal.taken_at IS NULL AND signal.name IS NOT NULL OR step.wakes_at < now())"
            )
            return {id for (id,) in cursor.fetchall()}

    def ids_waiting_for_finished_children(self) -> set[int]:
        open_steps = JobStep.objects.filter(kind="run", recorded_at=None).values_list("job_id", flat=True)
        parents = Job.objects.filter(pk__in=list(open_steps), status="blocked", gate="held")
        unfinished = Job.objects.filter(finished_at=None).values("pk")
        return {
            parent.pk
            for parent in parents
            if not JobChild.objects.filter(parent_id=parent.pk, job_id__in=unfinished).exists()
        }

    @invariant()
    def what_is_committed_is_sound(self) -> None:
        status_by_id = dict(Job.objects.values_list("pk", "status"))
        steps = {(step.job_id, step.name): step for step in JobStep.objects.all()}
        signals = {(signal.job_id, signal.name): signal for signal in JobSignal.objects.all()}
        entry_counts = Counter(Ledger.objects.values_list("job_id", "entry"))
        assert set(entry_counts.values()) <= {1}, "the effect of an atomic step happened twice"
        assert {id for id, _ in steps} <= status_by_id.keys(), "the steps of a pruned job are left"
        for id in set(self.flow_ids) & status_by_id.keys():
            for name, entries in EFFECTS.items():
                step = steps.get((id, name))
                done = 0 if step is None else step.result["done"] if name == "items" else 1
                expected_counts = [1] * done + [0] * (len(entries) - done)
                assert [entry_counts[id, entry] for entry in entries] == expected_counts
            numbers = [step.number for (job_id, _), step in sorted(steps.items(), key=place_in_plan) if job_id == id]
            assert numbers == list(range(1, len(numbers) + 1)), "the steps are out of order"
        for (job_id, name), result in self.recorded_results.items():
            assert job_id not in status_by_id or steps[job_id, name].result == result, (
                "a recorded result has changed, or is lost"
            )
        for key, step in steps.items():
            if step.recorded_at is not None and step.error is None:
                self.recorded_results[key] = step.result
                if step.kind == "wait":
                    assert step.result == self.sent_payloads[key]
        for key, payload in self.sent_payloads.items():
            if key[0] in status_by_id:
                assert signals[key].payload == payload, "a signal is lost"
                assert (signals[key].taken_at is not None) == (self.recorded_results.get(key) == payload), (
                    "taken, or lost"
                )
        if self.is_quiet:
            assert self.ids_that_could_go_on() <= self.ids_left_to_gate, "nobody has woken a job whose signal is there"

    def teardown(self) -> None:
        """Let all attempts go on: each job ends, and after a prune no rows of it are left."""
        self.roll_back()
        store.recover(worker_ids=WORKERS)
        self.finish()
        self.what_is_committed_is_sound()
        for completed_flow in Job.objects.filter(pk__in=self.flow_ids, status="completed"):
            payloads = [self.sent_payloads[completed_flow.pk, name] for name in SIGNALS]
            assert completed_flow.result == ["first", payloads[0], None, [1, 2], payloads[1], "last"]
        with override_settings(SKIPQUEUE={"RETENTION": {status.value: 0 for status in FINISHED}}):
            while store.prune():
                pass
        while store.admit().has_changed_jobs:
            pass
        for model in (Job, JobStep, JobSignal, JobChild, Dependency):
            assert not model._base_manager.exists(), model

    def roll_back(self) -> None:
        while not self.is_quiet:
            for session in self.sessions_in_transaction():
                operation, session.operation = session.operation, None
                assert operation is not None
                session.rollback()
                operation.on_rollback()
            self.wait_for_sessions()

    def finish(self) -> None:
        """Send all signals, and run all jobs to the end."""
        for _ in range(5):
            unfinished = list(Job.objects.unfinished().filter(pk__in=self.flow_ids).values_list("pk", flat=True))
            for id, name in product(unfinished, SIGNALS):
                if send_signal(store, [id], name, -1):
                    self.sent_payloads[id, name] = -1
            run_jobs(include_scheduled=True)
            if not Job.objects.unfinished().exists():
                return
        raise AssertionError(list(Job.objects.unfinished().values()))


def place_in_plan(item: tuple[tuple[int, str], JobStep]) -> int:
    (_job_id, step_name), _step = item
    return list(PLAN).index(step_name)


def pick(existing: list[Any], choice: int) -> Any:
    """One of the items, chosen by the number, or None if the list is empty."""
    return existing[-1 - choice % len(existing)] if existing else None


def waits_for_a_lock(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])


def commit_without_waiting_for_the_disk() -> None:
    """Commit without waiting for the disk, because the test commits thousands of times and needs none of it later."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")


@pytest.fixture
def sessions(transactional_db: None) -> Iterator[list[Line]]:
    sessions = [Line() for _ in range(3)]
    for session in sessions:
        session(commit_without_waiting_for_the_disk)
    yield sessions
    for session in sessions:
        session.close()


@pytest.mark.timeout(600 + 2 * EXAMPLES)  # shortening a sequence takes minutes
def test_no_order_of_statements_loses_a_step_or_a_signal(sessions: list[Line]) -> None:
    commit_without_waiting_for_the_disk()
    Interleaved.sessions[:] = sessions
    run_state_machine_as_test(
        Interleaved,
        settings=settings(
            max_examples=EXAMPLES or 15,
            stateful_step_count=40,
            phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
            derandomize=not EXAMPLES,
            print_blob=bool(EXAMPLES),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    connection.close()
