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
    done: Callable[[Any], object]
    """Called with the result, once it is committed."""
    undone: Callable[[], object]
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


def attempt_of(worker: str, claimed: ClaimedJob) -> Going:
    running = RunningAttempt(claimed)
    running.worker, running.database, running.started = worker, "default", time.monotonic()
    going = Going(worker, JobContext.of(running, is_atomic=False))
    if claimed.task == "steps.interleaved_child":
        going.outcome = Outcome("completed", result=claimed.args[1:-1])
    return going


LOST = Outcome("failed", last_error="the lease is lost")


def next_step(going: Going) -> tuple[Any, Outcome | None]:
    """Run the next step of the plan in this session. Returns its result, and the outcome that ends the attempt."""
    name = list(PLAN)[len(going.results)]
    before = version_of(going.id, name)
    result: Any = None
    outcome: Outcome | None = None
    try:
        result = PLAN[name](going.context)
    except LeaseLost:
        return None, LOST
    except EndAttempt as end:
        outcome = end.outcome
    except StepFailed as error:
        outcome = Outcome("failed", last_error=type(error).__name__)
    if version_of(going.id, name) != before:
        lease = Job.objects.values_list("lease", flat=True).get(pk=going.id)
        assert lease == going.context.lease, "an attempt without the lease has recorded a step"
    return result, outcome


def version_of(job_id: int, name: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text FROM skipqueue_step WHERE job_id = %s AND name = %s", [job_id, name])
        return cursor.fetchone()


class Interleaved(RuleBasedStateMachine):
    lines: ClassVar[list[Line]] = []

    def __init__(self) -> None:
        super().__init__()
        for model in (Job, JobStep, JobSignal, JobChild, Dependency, JobBatch, Worker, Ledger):
            model._base_manager.all()._raw_delete("default")
        for worker in WORKERS:
            make_worker(id=worker, name=worker[0])
        self.flows: list[int] = []
        self.going: list[Going] = []
        self.sent: dict[tuple[int, str], int] = {}
        """The payloads of committed signals."""
        self.recorded: dict[tuple[int, str], Any] = {}
        """The results of steps, as they were when they were recorded."""
        self.left_to_gate: set[int] = set()
        """Jobs that only the gate can wake, because another process died or found the row locked."""

    # Sessions

    def do(
        self,
        call: Callable[[], Any],
        done: Callable[[Any], object] = lambda _: None,
        undone: Callable[[], object] = lambda: None,
        *,
        stays_open: bool = False,
    ) -> bool:
        """Run a function in a session: commit at once, or leave the transaction open. Returns whether it has ended."""
        free = [line for line in self.lines if line.operation is None]
        if not free:
            undone()
            return False
        line = free[0]
        stays_open = stays_open and len(free) > 1
        if stays_open:
            line.begin()
        line.operation = Operation(line.start(call), done, undone, stays_open)
        self.go_on()
        return line.operation is None

    def go_on(self) -> None:
        """Wait until each session has ended its work, or waits for a lock of another session."""
        for line in self.lines:
            operation = line.operation
            if operation is None or line.is_open:
                continue
            end = time.monotonic() + DEADLINE
            while not wait([operation.future], timeout=0.01).done and not is_blocked(line.pid):
                assert time.monotonic() < end
            if operation.future.done():
                result = operation.future.result()
                if not operation.stays_open:
                    line.operation = None
                    operation.done(result)

    @property
    def is_quiet(self) -> bool:
        """Whether no transaction is open."""
        return all(line.operation is None for line in self.lines)

    def open_lines(self) -> list[Line]:
        return [line for line in self.lines if line.is_open]

    def end(self, number: int, commits: bool) -> None:
        if line := pick(self.open_lines(), number):
            operation, line.operation = line.operation, None
            assert operation is not None
            if commits:
                line.commit()
                operation.done(operation.future.result())
            else:
                line.rollback()
                operation.undone()
            self.go_on()

    # Jobs

    @initialize(flows=st.integers(1, 2), numbers=st.lists(st.sampled_from(range(8)), max_size=3))
    def begin(self, flows: int, numbers: list[int]) -> None:
        """Defer jobs, and begin somewhere within their plan."""
        self.flows = [flow.defer().pk for _ in range(flows)]
        for number in numbers:
            self.signal(number, False)
            self.work(number)

    @rule(act=st.sampled_from(ACTS), number=st.sampled_from(range(8)), stays_open=st.booleans())
    def act(self, act: str, number: int, stays_open: bool) -> None:
        """Call a method. `number` chooses one of the workers, attempts or jobs that there are."""
        getattr(self, act)(number, stays_open)

    # Workers

    def unended(self) -> list[Going]:
        return [going for going in self.going if not going.is_busy and going.outcome is None]

    def ended(self) -> list[Going]:
        return [going for going in self.going if not going.is_busy and going.outcome is not None]

    def claim(self, number: int, stays_open: bool) -> None:
        worker = WORKERS[number % 2]

        def claimed(jobs: list[ClaimedJob]) -> None:
            self.going += [attempt_of(worker, claimed) for claimed in jobs]

        self.do(lambda: store.claim(queue_names=["default"], limit=3, worker_id=worker), claimed, stays_open=stays_open)

    def advance(self, number: int, stays_open: bool) -> None:
        """Run the next step of an attempt. If its transaction is rolled back, the process has died in the middle."""
        if going := pick(self.unended(), number):
            self.advanced(going, stays_open=stays_open)

    def advanced(self, going: Going, *, stays_open: bool = False) -> bool:
        def over(found: tuple[Any, Outcome | None]) -> None:
            going.is_busy = False
            result, going.outcome = found
            if going.outcome is LOST:
                self.going.remove(going)
            elif going.outcome is None:
                going.results.append(result)
                if len(going.results) == len(PLAN):
                    going.outcome = Outcome("completed", result=json.dumps(going.results))

        going.is_busy = True
        return self.do(lambda: next_step(going), over, lambda: self.going.remove(going), stays_open=stays_open)

    def settle(self, number: int, stays_open: bool) -> None:
        """Write an outcome. Sometimes the worker dies right after this, and wakes no job."""
        if going := pick(self.ended(), number):
            self.settled(going, number, stays_open=stays_open, dies=number % 4 == 3)

    def settled(self, going: Going, number: int, *, stays_open: bool = False, dies: bool = False) -> bool:
        outcome = going.outcome
        assert outcome is not None
        if outcome.is_held and number % 2:  # send the signal between the wait and its settle
            name = list(PLAN)[len(going.results)]
            self.send([going.id] if name in SIGNALS else [], name)

        def over(written: set[int]) -> None:
            self.going.remove(going)
            if not written:
                return
            self.left_to_gate.add(going.id)
            if not dies:
                observer = WaitObserver()
                ended = Attempt(going.running.job, outcome, 0.0, 0.0, going.worker, False, "default")
                observer.ended(AttemptsRetrying, [ended])
                if outcome.is_held and self.is_quiet:
                    self.left_to_gate.discard(going.id)
                service = WakeSettled(store, observer)
                if observer.ids:
                    self.do(lambda: service.run(0.0))

        def undone() -> None:
            going.is_busy = False

        going.is_busy = True
        settlement = Settlement(*going.running.job.ref, outcome)
        return self.do(lambda: store.settle([settlement]), over, undone, stays_open=stays_open)

    def work(self, number: int, _: bool = False) -> None:
        """Let a worker claim jobs, run some steps of each, and settle the jobs that have ended."""
        self.claim(number, False)
        for going in [going for going in self.going if going.worker == WORKERS[number % 2]]:
            for _step in range(number):
                if not going.is_busy and going.outcome is None:
                    self.advanced(going)
            if not going.is_busy and going.outcome is not None and going in self.going:
                self.settled(going, number)

    def freeze(self, number: int, stays_open: bool) -> None:
        """Recover the jobs of a worker while it runs a step. The worker goes on, and another worker claims its jobs."""
        self.claim(number, False)
        for going in [going for going in self.unended() if going.worker == WORKERS[number % 2]][: number // 2]:
            self.advanced(going)
        self.recover(number, stays_open)
        self.work(number + 1)
        self.work(number)

    def fail(self, number: int, _: bool) -> None:
        """Let an attempt raise an error between two steps, and retry its job at once."""
        if going := pick(self.unended(), number):
            going.outcome = Outcome("scheduled", last_error="ValueError")

    def release(self, number: int, stays_open: bool) -> None:
        if going := pick(self.unended() + self.ended(), number):
            self.going.remove(going)
            self.do(lambda: store.release([going.running.job.ref]), stays_open=stays_open)

    # Supervisors

    def recover(self, number: int, stays_open: bool) -> None:
        """Recover the jobs of a frozen worker, whose attempts then go on."""
        self.do(lambda: store.recover(worker_ids=[WORKERS[number % 2]]), stays_open=stays_open)

    def gates(self, _number: int, _: bool) -> None:
        """Call the gates. After this, every job that can go on does, unless its row is locked."""

        def admit() -> None:
            while store.admit().has_changed_jobs:
                pass

        is_quiet = self.is_quiet
        self.do(admit)
        if is_quiet:
            self.left_to_gate.clear()
            assert not self.could_go_on()
            assert not self.waits_for_finished_children()
            assert not JobSignal.objects.exclude(job_id__in=Job.objects.values("pk")).filter(taken_at=None).exists()

    def prune(self, _: int, stays_open: bool) -> None:
        def prune() -> None:
            with override_settings(SKIPQUEUE={"RETENTION": {status.value: 0 for status in FINISHED}}):
                store.prune()

        self.do(prune, stays_open=stays_open)

    def let_the_time_of_signals_pass(self, _number: int, _: bool) -> None:
        self.do(
            lambda: JobStep.objects.filter(is_waiting=True, name="answer").update(wakes_at="2020-01-01T00:00Z"),
            lambda _: self.left_to_gate.update(self.could_go_on()),
        )

    # Users and operators

    def signal(self, number: int, stays_open: bool) -> None:
        unfinished = Job.objects.unfinished().filter(pk__in=self.flows).order_by("pk").values_list("pk", flat=True)
        id = pick(list(unfinished) or self.flows, number // 2)
        self.send([id], SIGNALS[number % 2], stays_open=stays_open)

    def send(self, ids: list[int], name: str, *, stays_open: bool = False) -> None:
        payload = len(self.sent) + 1

        def over(sent: list[int]) -> None:
            for id in sent:
                assert (id, name) not in self.sent, "a signal was sent twice"
                self.sent[id, name] = payload
                if not self.is_quiet:
                    self.left_to_gate.add(id)

        self.do(lambda: send_signal(store, ids, name, payload), over, stays_open=stays_open)

    def operate(self, number: int, stays_open: bool) -> None:
        verb = VERBS[number % len(VERBS)]

        def over(changed: dict[int, str]) -> None:
            self.left_to_gate |= changed.keys()

        id = pick(list(Job.objects.order_by("pk").values_list("pk", flat=True)), number // 2)
        self.do(lambda: getattr(store, verb)([id] if id else []), over, stays_open=stays_open)

    # What holds after every step

    def could_go_on(self) -> set[int]:
        """The jobs that are blocked although their signal has come, or the time to wait for it is over."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT job.id FROM skipqueue_job AS job JOIN skipqueue_step AS step ON step.job_id = job.id"
                " LEFT JOIN skipqueue_signal AS signal ON (signal.job_id, signal.name) = (step.job_id, step.name)"
                " WHERE job.status = 'blocked' AND job.gate = 'held' AND step.recorded_at IS NULL AND"
                " step.kind = 'wait' AND (signal.taken_at IS NULL AND signal.name IS NOT NULL OR step.wakes_at < now())"
            )
            return {id for (id,) in cursor.fetchall()}

    def waits_for_finished_children(self) -> set[int]:
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
        jobs = dict(Job.objects.values_list("pk", "status"))
        steps = {(step.job_id, step.name): step for step in JobStep.objects.all()}
        signals = {(signal.job_id, signal.name): signal for signal in JobSignal.objects.all()}
        written = Counter(Ledger.objects.values_list("job_id", "entry"))
        assert set(written.values()) <= {1}, "the effect of an atomic step happened twice"
        assert {id for id, _ in steps} <= jobs.keys(), "the steps of a pruned job are left"
        for id in set(self.flows) & jobs.keys():
            for name, entries in EFFECTS.items():
                step = steps.get((id, name))
                done = 0 if step is None else step.result["done"] if name == "items" else 1
                assert [written[id, entry] for entry in entries] == [int(place < done) for place in range(len(entries))]
            numbers = [step.number for (owner, _), step in sorted(steps.items(), key=place_of) if owner == id]
            assert numbers == list(range(1, len(numbers) + 1)), "the steps are out of order"
        for key, result in self.recorded.items():
            assert key[0] not in jobs or steps[key].result == result, "a recorded result has changed, or is lost"
        for key, step in steps.items():
            if step.recorded_at is not None and step.error is None:
                self.recorded[key] = step.result
                if step.kind == "wait":
                    assert step.result == self.sent[key]
        for key, payload in self.sent.items():
            if key[0] in jobs:
                assert signals[key].payload == payload, "a signal is lost"
                assert (signals[key].taken_at is not None) == (self.recorded.get(key) == payload), "taken, or lost"
        if self.is_quiet:
            assert self.could_go_on() <= self.left_to_gate, "nobody has woken a job whose signal is there"

    def teardown(self) -> None:
        """Let all attempts go on: each job ends, and after a prune no rows of it are left."""
        self.roll_back()
        store.recover(worker_ids=WORKERS)
        self.finish()
        self.what_is_committed_is_sound()
        for made in Job.objects.filter(pk__in=self.flows, status="completed"):
            payloads = [self.sent[made.pk, name] for name in SIGNALS]
            assert made.result == ["first", payloads[0], None, [1, 2], payloads[1], "last"]
        with override_settings(SKIPQUEUE={"RETENTION": {status.value: 0 for status in FINISHED}}):
            while store.prune():
                pass
        while store.admit().has_changed_jobs:
            pass
        for model in (Job, JobStep, JobSignal, JobChild, Dependency):
            assert not model._base_manager.exists(), model

    def roll_back(self) -> None:
        while not self.is_quiet:
            for line in self.open_lines():
                operation, line.operation = line.operation, None
                assert operation is not None
                line.rollback()
                operation.undone()
            self.go_on()

    def finish(self) -> None:
        """Send all signals, and run all jobs to the end."""
        for _ in range(5):
            unfinished = list(Job.objects.unfinished().filter(pk__in=self.flows).values_list("pk", flat=True))
            for id, name in product(unfinished, SIGNALS):
                if send_signal(store, [id], name, -1):
                    self.sent[id, name] = -1
            run_jobs(include_scheduled=True)
            if not Job.objects.unfinished().exists():
                return
        raise AssertionError(list(Job.objects.unfinished().values()))


def place_of(item: tuple[tuple[int, str], JobStep]) -> int:
    return list(PLAN).index(item[0][1])


def pick(existing: list[Any], number: int) -> Any:
    return existing[-1 - number % len(existing)] if existing else None


def is_blocked(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])


def hurry() -> None:
    """Commit without waiting for the disk, because the test commits thousands of times and needs none of it later."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")


@pytest.fixture
def lines(transactional_db: None) -> Iterator[list[Line]]:
    made = [Line() for _ in range(3)]
    for line in made:
        line(hurry)
    yield made
    for line in made:
        line.close()


@pytest.mark.timeout(600 + 2 * EXAMPLES)  # shortening a sequence takes minutes
def test_no_order_of_statements_loses_a_step_or_a_signal(lines: list[Line]) -> None:
    hurry()
    Interleaved.lines[:] = lines
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
