"""A gate (a time, a limit, a rate or another job) keeps a job waiting: the first status of a job, and its admission."""

import inspect
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import DataError, IntegrityError, connection

from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.unique import enqueue as enqueue_unique
from django_skipqueue.queue import enqueue, fragments
from django_skipqueue.queue import gates as gates_module
from django_skipqueue.queue.fragments import CONDITIONS, entering
from django_skipqueue.queue.gates import gates
from django_skipqueue.queue.store import Store
from django_skipqueue.values.part import Condition
from django_skipqueue.values.records import EncodedCall, GateResult, JobSpec

from ..app import jobs
from ..app.rows import make_job, state
from ..harness.processes import statuses
from .statements import MODULES, STATEMENTS

store = Store("default")

OTHER_CONDITION = Condition(gate="other", holds="{other_key} IS NOT NULL")
HELD, LIMITED, RATED = "job.held::boolean", "job.limit_key::text IS NOT NULL", "job.rate_key::text IS NOT NULL"


def test_every_gate_has_a_condition_in_the_statements() -> None:
    names = dict.fromkeys(gate.name for gate in gates())  # without duplicates: two parts have the gate `held`
    assert list(names) == [condition.gate for condition in CONDITIONS]


def test_a_new_job_gets_the_status_of_the_first_gate_at_which_it_must_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entering(column="job.{}", run_after="now()") == {
        "status": "CASE WHEN now() > statement_timestamp() THEN 'scheduled' "
        f"WHEN {HELD} THEN 'blocked' WHEN {LIMITED} THEN 'blocked' WHEN {RATED} THEN 'blocked' ELSE 'queued' END",
        "gate": "CASE WHEN now() > statement_timestamp() THEN NULL "
        f"WHEN {HELD} THEN 'held' WHEN {LIMITED} THEN 'limit' WHEN {RATED} THEN 'rate' END",
    }
    assert entering(column="job.{}", past="limit") == {
        "status": f"CASE WHEN {RATED} THEN 'blocked' ELSE 'queued' END",
        "gate": f"CASE WHEN {RATED} THEN 'rate' END",
    }
    assert entering(column="job.{}", past="rate") == {"status": "'queued'", "gate": "NULL"}
    monkeypatch.setattr(fragments, "CONDITIONS", (*CONDITIONS, OTHER_CONDITION))
    assert entering(column="%({})s", past="rate") == {
        "status": "CASE WHEN %(other_key)s IS NOT NULL THEN 'blocked' ELSE 'queued' END",
        "gate": "CASE WHEN %(other_key)s IS NOT NULL THEN 'other' END",
    }


def test_every_statement_that_queues_a_job_checks_the_gates() -> None:
    """Only statements for jobs that have already passed their gates may write the status `queued` directly."""
    modules = {module.__name__.rpartition("django_skipqueue.")[2]: module for module in (fragments, *MODULES)}
    sources = {name: inspect.getsource(module) for name, module in modules.items()}
    modules_writing_queued = {
        name for name, text in sources.items() if re.search(r"(THEN|ELSE|SET status =) 'queued'", text)
    }
    assert modules_writing_queued == {
        "parts.limits.claim",
        "parts.rates.admit",
        "queue.fragments",
        "queue.recover",
        "queue.release",
    }
    end_of_gate_check = r"rate_key(\)s)?::text IS NOT NULL THEN 'blocked' ELSE 'queued' END"
    assert {name for name, text in STATEMENTS.items() if re.search(end_of_gate_check, text)} == {
        "ADMIT",
        "ADMIT_BY_KEY",
        "ADMIT_DEPENDANTS",
        "ADMIT_LONE",
        "CHANGE_QUEUE",
        "ENQUEUE",
        "ENQUEUE_AND_ADMIT",
        "ENQUEUE_MANY",
        "ENQUEUE_MANY_UNIQUE",
        "PASS_PERMITS_ON",
        "REPLACE_UNLOCKED",
        "REPLACE_WAITING",
        "RESCHEDULE",
        "RETRY",
        "RUN_NOW",
        "SETTLE",
        "SETTLE_CARRIED",
        "SETTLE_CARRIED_SNOOZES",
        "SETTLE_SNOOZES",
        "WAKE",
    }


class OtherGate:
    """A gate that returns admitted jobs of two queues, without changing a row."""

    name = "other"

    def __init__(self, next_due: float | None) -> None:
        self._next_due = next_due

    def admit(self, store: Store, *, limit: int) -> GateResult:
        return GateResult({"default": 1, "other": limit})

    def next_due(self, store: Store) -> float | None:
        return self._next_due


@pytest.mark.django_db
# In seconds. The time gate, which is always there, may admit its job in 5 seconds.
@pytest.mark.parametrize(("next_due_of_other_gate", "next_due_of_any_gate"), [(None, 5.0), (2.0, 2.0), (9.0, 5.0)])
def test_admit_calls_every_gate(
    monkeypatch: pytest.MonkeyPatch, next_due_of_other_gate: float | None, next_due_of_any_gate: float
) -> None:
    gates_with_other = [*(type(gate)() for gate in gates()), OtherGate(next_due_of_other_gate)]
    monkeypatch.setattr(gates_module, "gates", lambda: gates_with_other)
    make_job("scheduled", run_after=timedelta(seconds=5))
    assert store.next_due() == pytest.approx(next_due_of_any_gate, abs=1.0)
    make_job("scheduled", run_after=timedelta(seconds=-1), queue_name="default")
    assert store.admit(limit=7).by_queue == {"default": 2, "other": 7}
    assert statuses() == {"queued": 1, "scheduled": 1}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "change", "expected"),
    [
        ("failed", lambda job: job.retry(), "queued"),
        ("failed", lambda job: job.retry(over=60.0), "scheduled"),
        ("scheduled", lambda job: job.run_now(), "queued"),
    ],
    ids=["retry", "retry over a time", "run_now"],
)
def test_a_changed_job_has_the_status_that_the_gates_decide(
    status: str, change: Callable[[Job], bool], expected: str
) -> None:
    job = make_job(status)
    assert change(job)
    assert job.status == Job.objects.get(pk=job.pk).status == expected


@pytest.mark.django_db
def test_a_job_whose_run_after_is_past_is_queued_at_once() -> None:
    assert jobs.noop.using(run_after=timedelta(seconds=-1)).defer().status == "queued"
    assert jobs.noop.using(run_after=timedelta(seconds=60)).defer().status == "scheduled"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("blocked_arguments", "unique_key", "expected"),
    [(["0"], None, ["mail"]), (["0", "1", "2"], None, []), (["0"], "key", ["mail"]), (["0", "1", "2"], "key", [])],
)
def test_workers_are_notified_if_a_gate_blocks_only_some_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, blocked_arguments: list[str], unique_key: str | None, expected: list[str]
) -> None:
    # Add a condition for a gate `other` to the statements, which blocks jobs with these arguments.
    blocks_argument = f"WHEN call.args::jsonb ->> 0 = ANY ('{{{','.join(blocked_arguments)}}}')"
    for module, name in ((enqueue, "ENQUEUE_MANY"), (enqueue_unique, "ENQUEUE_MANY_UNIQUE")):
        statement = getattr(module, name).replace(
            "ELSE 'queued' END", f"{blocks_argument} THEN 'blocked' ELSE 'queued' END"
        )
        monkeypatch.setattr(
            module, name, statement.replace("THEN 'rate' END", f"THEN 'rate' {blocks_argument} THEN 'other' END")
        )
    queues_notified: list[str] = []
    monkeypatch.setattr(
        "django_skipqueue.queue.enqueue.wake", lambda _, queue_names: queues_notified.extend(queue_names)
    )
    calls = [
        EncodedCall(f"[{number}]", "{}").with_unique_key(unique_key and f"{unique_key} {number}") for number in range(3)
    ]
    assert len(store.enqueue_many(JobSpec("t", queue_name="mail"), calls)) == 3
    assert statuses() == {"blocked": len(blocked_arguments)} | (
        {"queued": 3 - len(blocked_arguments)} if len(blocked_arguments) < 3 else {}
    )
    assert queues_notified == expected


BAD_LIMITS = ["concurrency = -1", "rate_interval = 1e-320", "rate_interval = 'NaN'", "rate_burst = -1"]


@pytest.mark.django_db
@pytest.mark.parametrize("change", BAD_LIMITS)
def test_the_table_of_queues_refuses_invalid_limits_and_rates(change: str) -> None:
    Queue.pause("a")
    with pytest.raises(IntegrityError, match="skipqueue_queue_"), connection.cursor() as cursor:
        cursor.execute(f"UPDATE skipqueue_queue SET {change}")


@pytest.mark.django_db(transaction=True)
def test_a_gate_that_postgresql_refuses_does_not_stop_the_other_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    def divide_by_zero(*args: object, **options: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    time_gate, *other_gates = gates()
    monkeypatch.setattr(time_gate, "admit", divide_by_zero)
    due_job, later_job = make_job("scheduled", run_after=timedelta(seconds=-1)), make_job("scheduled")
    with pytest.raises(DataError, match="division by zero"):
        store.admit()
    assert state(due_job)["status"] == "scheduled"
    monkeypatch.undo()
    monkeypatch.setattr(other_gates[-1], "admit", divide_by_zero)
    with pytest.raises(DataError, match="division by zero"):
        store.admit()
    assert [state(scheduled_job)["status"] for scheduled_job in (due_job, later_job)] == ["queued", "scheduled"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    ["status = 'blocked'", "gate = 'limit'", "status = 'queued', gate = 'rate'"],
    ids=["blocked at no gate", "queued at a gate", "queued at another gate"],
)
def test_the_table_refuses_a_blocked_job_without_a_gate_and_a_queued_job_with_one(change: str) -> None:
    """Nothing would ever admit a job that is blocked at no gate."""
    make_job()
    with pytest.raises(IntegrityError, match="skipqueue_job_gate"), connection.cursor() as cursor:
        cursor.execute(f"UPDATE skipqueue_job SET {change}")
