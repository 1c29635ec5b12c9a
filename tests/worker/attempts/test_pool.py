"""`Pool`: each submitted job is returned exactly once, and no job harms a later job in its thread."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.db import connections

from django_skipqueue.jobs.registry import EVENT_LOOP, THREADS
from django_skipqueue.signals import job_started
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.attempts import connections as thread_connections
from django_skipqueue.worker.attempts import event_loop, executor, running_attempt
from django_skipqueue.worker.attempts import pool as pool_module
from django_skipqueue.worker.attempts.event_loop import EventLoopRunner
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.pool import RESPONSE_TIME, Pool
from django_skipqueue.worker.loop import Wakeup

from ...app import worker_jobs
from ...app.models import Ledger
from ...app.waiting import DEADLINE, collect, wait_until, within
from ...app.worker_jobs import MISTREATMENTS
from ...harness.fixtures import close_connections_of_asgiref
from ...harness.threads import backends

APP = "tests.app.jobs"
WORKER_APP = "tests.app.worker_jobs"

_ids = count(1)


def make_claimed(task: str, *args: Any) -> ClaimedJob:
    return ClaimedJob(
        id=next(_ids), lease=1, task=task, queue_name="default", args=json.dumps(args), kwargs="{}", attempt=1,
        max_attempts=1, priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
    )  # fmt: skip


MakePool = Callable[[int], Pool]


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    new_wakeup = Wakeup()
    yield new_wakeup
    new_wakeup.close()


@pytest.fixture
def make_pool(gates: Any, wakeup: Wakeup) -> Iterator[MakePool]:
    pools: list[Pool] = []

    def make(concurrency: int) -> Pool:
        pools.append(Pool(Executor(worker="w", database="default"), concurrency=concurrency, wake=wakeup.call))
        return pools[-1]

    yield make
    for gate in list(gates.values()):
        gate.open()
    for pool in pools:
        pool.withdraw()
        # A leftover coroutine of an attempt would run on in the thread that collects it as garbage.
        wait_until(partial(has_ended, pool))
        with contextlib.suppress(RuntimeError):  # stopped by the test already
            pool.stop()


def has_ended(pool: Pool) -> bool:
    return not (pool.attempts or pool.unfinished(EVENT_LOOP))


def wait_for_finished(pool: Pool, count: int) -> list[Attempt]:
    """Return the finished attempts, once there are this many."""
    return collect(pool.take_finished, count, f"{count} are finished")


# The task of kind "a" is an `async def` function, whose name begins with an `a`.
DEF_AND_ASYNC = pytest.mark.parametrize("kind", ["", "a"], ids=["def", "async def"])


@DEF_AND_ASYNC
def test_withdrawing_the_last_waiting_jobs_keeps_the_order_of_the_jobs(
    make_pool: MakePool, gates: Any, kind: str
) -> None:
    pool = make_pool(1)
    waiting_jobs = [make_claimed(f"{APP}.{kind}noop") for _ in range(4)]
    pool.submit([make_claimed(f"{WORKER_APP}.{kind}pass_gate", "g"), *waiting_jobs])
    wait_until(lambda: gates["g"].inside)
    assert pool.withdraw_last({EVENT_LOOP if kind else THREADS: 2}) == waiting_jobs[2:]
    assert pool.withdraw() == waiting_jobs[:2]


@DEF_AND_ASYNC
def test_every_submitted_job_is_returned_once_with_its_outcome(make_pool: MakePool, kind: str) -> None:
    pool = make_pool(3)
    jobs = [make_claimed(f"{APP}.{kind}add", number) for number in range(50)]
    pool.submit(jobs[:20])
    pool.submit(jobs[20:])
    attempts = wait_for_finished(pool, 50)
    assert sorted(attempt.job.id for attempt in attempts) == [job.id for job in jobs]
    assert all(attempt.outcome.result == json.loads(attempt.job.args)[0].__repr__() for attempt in attempts)
    assert pool.take_finished() == []


@DEF_AND_ASYNC
def test_as_many_jobs_as_the_concurrency_run_at_once(make_pool: MakePool, gates: Any, kind: str) -> None:
    pool = make_pool(3)
    pool.submit([make_claimed(f"{WORKER_APP}.{kind}pass_gate", "g") for _ in range(10)])
    wait_until(lambda: gates["g"].inside == 3)
    gates["g"].open()
    wait_for_finished(pool, 10)
    assert gates["g"].most == 3


def test_threads_and_coroutines_have_separate_slots(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.pass_gate", "g"), make_claimed(f"{APP}.anoop")])
    assert [attempt.job.task for attempt in wait_for_finished(pool, 1)] == [f"{APP}.anoop"]


@DEF_AND_ASYNC
def test_a_withdrawn_job_never_runs(make_pool: MakePool, gates: Any, kind: str) -> None:
    pool = make_pool(2)
    jobs = [make_claimed(f"{WORKER_APP}.{kind}pass_gate", "g") for _ in range(5)]
    pool.submit(jobs)
    wait_until(lambda: gates["g"].inside == 2)
    assert pool.withdraw() == jobs[2:]
    assert pool.withdraw() == []
    gates["g"].open()
    assert {attempt.job for attempt in wait_for_finished(pool, 2)} == set(jobs[:2])
    assert gates["g"].came == 2


def test_a_job_that_starts_during_a_withdrawal_is_returned_once(make_pool: MakePool) -> None:
    pool = make_pool(2)
    withdrawn: list[ClaimedJob] = []
    for _ in range(50):
        jobs = [make_claimed(f"{APP}.{kind}noop") for kind in ("", "a") * 5]
        pool.submit(jobs)
        withdrawn = pool.withdraw()
        attempts = wait_for_finished(pool, len(jobs) - len(withdrawn))
        assert sorted([*withdrawn, *(attempt.job for attempt in attempts)]) == sorted(jobs)


def test_a_finished_job_wakes_the_control_loop(make_pool: MakePool, wakeup: Wakeup) -> None:
    pool = make_pool(1)
    with within(DEADLINE):
        pool.submit([make_claimed(f"{APP}.slow", 0.02)])
        wakeup.wait(10 * DEADLINE, unless=lambda: pool.finished)
    assert len(pool.take_finished()) == 1


def test_a_job_of_an_unregistered_task_is_returned_with_an_error(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed("shop.jobs.unknown")])
    (attempt,) = wait_for_finished(pool, 1)
    assert "shop.jobs.unknown" in (attempt.outcome.last_error or "")


def test_stopping_the_pool_ends_all_its_threads(make_pool: MakePool) -> None:
    threads_before = set(threading.enumerate())
    pool = make_pool(3)
    pool.submit([make_claimed(f"{APP}.noop"), make_claimed(f"{APP}.anoop")])
    wait_for_finished(pool, 2)
    pool.stop()
    pool_threads = {
        thread for thread in set(threading.enumerate()) - threads_before if thread.name.startswith("skipqueue")
    }
    assert not pool_threads


@DEF_AND_ASYNC
def test_an_exception_of_a_thread_itself_is_raised_to_the_control_loop(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def raise_error(*_: object) -> None:
        raise AssertionError("a broken part")

    monkeypatch.setattr(Executor, "outcome_of_error", raise_error)
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.{kind}raise_base_exception", "SystemExit")])
    wait_until(lambda: pool.finished)
    with pytest.raises(AssertionError, match="a broken part"):
        pool.take_finished()


def test_attempts_finished_before_a_thread_broke_are_returned_first(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed(f"{APP}.noop")])
    wait_until(lambda: pool.finished)
    pool.finished.append(AssertionError("a broken part"))
    assert len(pool.take_finished()) == 1
    with pytest.raises(AssertionError, match="a broken part"):
        pool.take_finished()


# What a task does to the event loop


@pytest.mark.parametrize("task", ["astop_loop", "acancel_itself", "acancel_all"])
def test_a_task_that_abuses_the_event_loop_completes_and_so_do_its_neighbours(make_pool: MakePool, task: str) -> None:
    pool = make_pool(3)
    jobs = [make_claimed(f"{WORKER_APP}.{task}"), *(make_claimed(f"{APP}.aadd", number) for number in range(5))]
    pool.submit(jobs)
    attempts = wait_for_finished(pool, 6)
    pool.submit([make_claimed(f"{APP}.aadd", 7)])
    attempts += wait_for_finished(pool, 1)
    assert [attempt.outcome.status for attempt in attempts] == ["completed"] * 7
    assert {attempt.outcome.result for attempt in attempts} == {None, "0", "1", "2", "3", "4", "7"}


@pytest.mark.parametrize("task", ["aleave_generator", "aleave_blocking_background"])
def test_leftovers_in_the_event_loop_do_not_delay_the_stop_of_the_pool(
    make_pool: MakePool, gates: Any, task: str
) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.{task}", "never")])
    wait_for_finished(pool, 1)
    if task == "aleave_blocking_background":
        wait_until(lambda: gates["never"].inside == 1)
    started_at = time.monotonic()
    pool.stop()
    assert time.monotonic() - started_at < DEADLINE


# A coroutine that blocks the event loop


@pytest.mark.parametrize("arrival", ["with the blocker", "later"])
def test_jobs_that_wait_for_a_blocked_event_loop_are_withdrawn_and_never_run(
    make_pool: MakePool, gates: Any, arrival: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(4)
    blocking_job = make_claimed(f"{WORKER_APP}.ablock_loop", "g")
    waiting_jobs = [make_claimed(f"{APP}.anoop") for _ in range(3)]
    if arrival == "later":
        pool.submit([blocking_job])
        wait_until(lambda: gates["g"].inside)
        pool.submit(waiting_jobs)
    else:
        pool.submit([blocking_job, *waiting_jobs])
        wait_until(lambda: gates["g"].inside)
    now = time.monotonic()
    assert not pool.unresponsive(now)
    assert not pool.withdraw_held_up(now)
    assert now < pool.unresponsive_at <= now + RESPONSE_TIME
    response_deadline = pool.unresponsive_at
    assert pool.withdraw_held_up(response_deadline) == waiting_jobs
    assert pool.unresponsive(response_deadline) == [EVENT_LOOP]
    assert f"{WORKER_APP}.ablock_loop id={blocking_job.id} for" in caplog.text
    assert "pass_gate" in caplog.text
    assert "anoop" not in caplog.text
    pool.submit(waiting_jobs[:1])
    assert pool.withdraw_held_up(response_deadline) == waiting_jobs[:1]
    assert len(caplog.records) == 1, "a blocked event loop is logged once a minute"
    assert pool.unfinished(EVENT_LOOP) == 1
    gates["g"].open()
    assert [attempt.job for attempt in wait_for_finished(pool, 1)] == [blocking_job]
    wait_until(lambda: pool.unresponsive_at == float("inf"))
    pool.submit(waiting_jobs[:1])
    assert [attempt.job for attempt in wait_for_finished(pool, 1)] == waiting_jobs[:1]


def test_jobs_that_wait_for_slots_do_not_make_the_event_loop_unresponsive(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate", "g"), make_claimed(f"{APP}.anoop")])
    wait_until(lambda: gates["g"].inside)
    wait_until(lambda: pool.unresponsive_at == float("inf"))
    gates["g"].open()
    wait_for_finished(pool, 2)


# Attempts that are stuck: they go on after their time limit


@pytest.fixture
def _stuck_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an attempt count as stuck soon after its time limit."""
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)


@pytest.fixture
def _blocked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make leftover code count as blocking other jobs at once."""
    monkeypatch.setattr(event_loop, "STUCK_AFTER", 0.05)
    monkeypatch.setattr(event_loop, "LEFTOVER_TIME", 0.05)
    monkeypatch.setattr(pool_module, "RESPONSE_CHANCE_SECONDS", 0.0)


TIME_LIMIT = 0.5
"""Seconds: long enough for an attempt to begin on a busy machine before its time is over."""


def make_timed(task: str, *args: Any) -> ClaimedJob:
    """A claimed job with a short time limit."""
    return make_claimed(task, *args)._replace(timeout=TIME_LIMIT)


def enforce_limits(pool: Pool) -> bool:
    """Enforce the limits as the control loop does. Returns whether an attempt was found stuck."""
    interrupter = pool.executor.interrupter
    stuck_before = interrupter.stuck()
    pool.enforce_limits()
    return any(attempt not in stuck_before for attempt in interrupter.stuck())


def wait_until_one_is_stuck(pool: Pool) -> None:
    """Enforce the limits as the control loop does, until the worker must be replaced."""
    wait_until(lambda: enforce_limits(pool), "something is stuck")


def wait_for_finished_in_time(pool: Pool, count: int) -> list[Attempt]:
    """Return the finished attempts, once there are this many. Meanwhile no attempt may get stuck."""
    finished: list[Attempt] = []

    def have_finished() -> bool:
        assert not enforce_limits(pool)
        finished.extend(pool.take_finished())
        return len(finished) >= count

    wait_until(have_finished, f"{count} are finished")
    return finished


@pytest.mark.usefixtures("_stuck_at_once")
def test_a_stuck_attempt_that_ends_later_is_returned_only_once(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(1)
    pool.submit([make_timed(f"{WORKER_APP}.pass_gate", "g"), make_claimed(f"{APP}.noop")])
    wait_until_one_is_stuck(pool)
    stuck_attempt, next_attempt = wait_for_finished(pool, 2)
    assert stuck_attempt.outcome.status == "failed"
    assert next_attempt.job.task == f"{APP}.noop"
    assert pool.has_stuck
    gates["g"].open()
    wait_until(lambda: pool.take_finished() or not pool.has_stuck)
    assert pool.take_finished() == []


@DEF_AND_ASYNC
@pytest.mark.usefixtures("_stuck_at_once")
@pytest.mark.parametrize("end", ["of the code", "of the process"])
def test_a_stuck_attempt_that_holds_a_permit_is_returned_only_when_it_ends(
    make_pool: MakePool, gates: Any, kind: str, end: str
) -> None:
    pool = make_pool(1)
    pool.keeps_permits = True
    stuck_job = make_timed(f"{WORKER_APP}.{kind}pass_gate_come_what_may", "g")._replace(holds_permit=True)
    pool.submit([stuck_job, make_claimed(f"{APP}.{kind}noop")])
    wait_until_one_is_stuck(pool)
    [next_attempt] = wait_for_finished(pool, 1)
    assert next_attempt.job.task == f"{APP}.{kind}noop"
    assert [*pool.kept_back] == [stuck_job.ref]
    assert pool.unfinished(EVENT_LOOP if kind else THREADS) == 0
    returned_attempts = pool.take_kept_back() if end == "of the process" else []
    gates["g"].open()
    wait_until(lambda: not pool.has_stuck and stuck_job.id not in pool.running_jobs.job_ids())
    returned_attempts += pool.take_finished()
    assert [(attempt.job, attempt.outcome.status) for attempt in returned_attempts] == [(stuck_job, "failed")]
    assert not pool.kept_back
    assert not pool.take_kept_back()


@DEF_AND_ASYNC
@pytest.mark.usefixtures("_stuck_at_once")
def test_a_stuck_attempt_takes_no_slot_until_all_slots_are_stuck(make_pool: MakePool, gates: Any, kind: str) -> None:
    """The pool is used up once the number of stuck attempts equals the number of slots."""
    pool = make_pool(2)
    pool.submit([make_timed(f"{WORKER_APP}.{kind}pass_gate_come_what_may", "g")])
    wait_until_one_is_stuck(pool)
    wait_for_finished(pool, 1)
    assert not pool.is_used_up  # one of the two slots is stuck
    pool.submit([make_claimed(f"{WORKER_APP}.{kind}pass_gate", "beside") for _ in range(3)])
    wait_until(lambda: gates["beside"].inside == 2, "two jobs run beside the stuck attempt")
    gates["beside"].open()
    wait_for_finished(pool, 3)
    assert gates["beside"].most == 2
    pool.submit([make_timed(f"{WORKER_APP}.{kind}pass_gate_come_what_may", "g")])
    wait_until_one_is_stuck(pool)
    wait_for_finished(pool, 1)
    assert pool.is_used_up  # both slots are stuck
    gates["g"].open()
    wait_until(lambda: not pool.has_stuck and not pool.is_used_up, "nothing is stuck any more")
    assert not pool.take_finished()


@DEF_AND_ASYNC
@pytest.mark.usefixtures("_stuck_at_once")
def test_a_stuck_attempt_that_has_ended_is_not_charged_for_a_death(make_pool: MakePool, gates: Any, kind: str) -> None:
    """By then the job may have a new attempt, which must not be counted for the death of this process."""
    pool = make_pool(1)
    stuck_job = make_timed(f"{WORKER_APP}.{kind}pass_gate_come_what_may", "g")
    pool.submit([stuck_job])
    wait_until_one_is_stuck(pool)
    wait_for_finished(pool, 1)
    assert pool.running_jobs.job_ids() == [stuck_job.id]
    gates["g"].open()
    wait_until(lambda: not pool.running_jobs.job_ids())


@pytest.mark.usefixtures("_stuck_at_once")
def test_a_stuck_coroutine_is_not_counted_as_unfinished(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(2)
    pool.submit([make_timed(f"{WORKER_APP}.apass_gate_come_what_may", "g")])
    wait_until_one_is_stuck(pool)
    wait_for_finished(pool, 1)
    assert pool.unfinished(EVENT_LOOP) == 0
    gates["g"].open()
    wait_until(lambda: not pool.take_finished() and not pool.has_stuck)
    wait_until(lambda: pool.unfinished(EVENT_LOOP) == 0)


@pytest.mark.usefixtures("_stuck_at_once")
def test_after_several_coroutines_get_stuck_no_more_run_than_there_are_slots(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(2)
    task = f"{WORKER_APP}.apass_gate_come_what_may"
    pool.submit([make_timed(task, "g")])
    wait_until_one_is_stuck(pool)
    wait_for_finished(pool, 1)
    pool.submit([make_timed(task, "g"), make_timed(task, "g")])
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate", "beside") for _ in range(3)])
    loop = pool.runners[EVENT_LOOP]
    assert isinstance(loop, EventLoopRunner)
    wait_until(lambda: len(loop.running) == 3)
    time.sleep(2 * TIME_LIMIT)  # longer than the time limit of the attempts
    assert loop.loop is not None
    loop.loop.call_soon_threadsafe(time.sleep, 0.3)  # then the loop handles all events of these 0.3 s at once
    wait_until(lambda: not enforce_limits(pool) and len(loop.stuck) == 3)
    wait_for_finished(pool, 2)
    wait_until(lambda: gates["beside"].inside == 1)
    gates["beside"].open()
    gates["g"].open()
    wait_for_finished(pool, 3)


@pytest.mark.usefixtures("_stuck_at_once", "_blocked_at_once")
def test_a_stuck_attempt_that_blocks_the_event_loop_is_found(make_pool: MakePool, gates: Any) -> None:
    """The second attempt has no limit, and would wait for ever."""
    pool = make_pool(3)
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate", "other")])
    wait_until(lambda: gates["other"].inside == 1)
    pool.submit([make_timed(f"{WORKER_APP}.ablock_loop", "g")])
    wait_until_one_is_stuck(pool)
    assert not pool.is_used_up
    wait_until(pool.find_blockage, "it is found to be blocked")


@pytest.mark.usefixtures("_stuck_at_once")
def test_charge_only_stuck_charges_the_stuck_attempt_and_no_running_one(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(2)
    stuck_job = make_timed(f"{WORKER_APP}.pass_gate", "g")
    pool.submit([stuck_job, make_claimed(f"{WORKER_APP}.pass_gate", "g")])
    wait_until(lambda: gates["g"].inside == 2)
    wait_until_one_is_stuck(pool)
    pool.charge_only_stuck()
    assert pool.running_jobs.job_ids() == [stuck_job.id]


@pytest.mark.usefixtures("_stuck_at_once")
def test_a_backoff_that_hangs_for_a_stuck_attempt_is_replaced_by_the_default(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, gates: Any
) -> None:
    monkeypatch.setattr(executor, "DECISION_SECONDS", 0.05)
    pool = make_pool(1)
    pool.submit([make_timed(f"{WORKER_APP}.pass_gate_with_a_backoff_that_hangs", "g")._replace(max_attempts=2)])
    with within(DEADLINE):
        wait_until_one_is_stuck(pool)
    [stuck_attempt] = pool.take_finished()
    assert stuck_attempt.outcome.status == "scheduled", "the default backoff takes its place"
    assert (
        stuck_attempt.outcome.last_error
        == f"JobTimeout: timed out after {TIME_LIMIT} s (the task's backoff did not return within 0.05 s)"
    )
    assert stuck_attempt.outcome.error is not None
    assert "The task's backoff did not return within 0.05 s" in stuck_attempt.outcome.error["message"]


def test_an_attempt_that_ends_while_its_timeout_is_decided_is_completed(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, gates: Any
) -> None:
    def decide(*_: Any) -> Outcome:
        gates["g"].open()
        wait_until(lambda: pool.finished)
        return Outcome("failed")

    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    monkeypatch.setattr(executor, "DECISION_SECONDS", DEADLINE)
    pool = make_pool(1)
    pool.submit([make_timed(f"{WORKER_APP}.pass_gate_and_get_over_it", "g")])
    monkeypatch.setattr(Executor, "decide", decide)
    wait_until(lambda: enforce_limits(pool) or pool.finished)
    assert [attempt.outcome.status for attempt in pool.take_finished()] == ["completed"]


def sleep_for_ever(**_: Any) -> None:
    while True:
        time.sleep(0.001)


def wait_at_gate(**_: Any) -> None:
    worker_jobs.pass_gate("receiver")


@pytest.fixture
def connect_receiver() -> Iterator[Callable[[Any], None]]:
    """Connects a receiver of `job_started`."""
    connected_receivers: list[Any] = []

    def connect(receiver: Any) -> None:
        job_started.connect(receiver)
        connected_receivers.append(receiver)

    yield connect
    for receiver in connected_receivers:
        job_started.disconnect(receiver)


def test_a_receiver_of_job_started_that_takes_too_long_is_interrupted(
    make_pool: MakePool, connect_receiver: Callable[[Any], None]
) -> None:
    connect_receiver(sleep_for_ever)
    pool = make_pool(1)
    pool.submit([make_timed(f"{APP}.noop")])
    [attempt] = wait_for_finished_in_time(pool, 1)
    assert attempt.outcome.last_error == f"JobTimeout: timed out after {TIME_LIMIT} s"


@DEF_AND_ASYNC
@pytest.mark.usefixtures("_stuck_at_once", "gates")
def test_an_attempt_with_a_hanging_receiver_of_job_started_is_stuck(
    make_pool: MakePool, connect_receiver: Callable[[Any], None], kind: str
) -> None:
    connect_receiver(wait_at_gate)
    pool = make_pool(1)
    pool.submit([make_timed(f"{APP}.{kind}noop")])
    wait_until_one_is_stuck(pool)
    [attempt] = pool.take_finished()
    assert attempt.outcome.error is not None
    assert "wait_at_gate" in attempt.outcome.error["traceback"]


@pytest.mark.usefixtures("_blocked_at_once", "gates")
def test_an_event_loop_blocked_by_leftover_code_is_found(
    make_pool: MakePool, gates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.aleave_blocking_background", "never")])
    wait_for_finished(pool, 1)
    wait_until(lambda: gates["never"].inside == 1)
    assert not pool.find_blockage(), "no job waits for the event loop"
    wait_until(lambda: pool.next_deadline == float("inf"), "its connections are tidied")
    pool.submit([make_claimed(f"{APP}.anoop")])
    assert pool.next_deadline < time.monotonic() + 0.1
    wait_until(pool.find_blockage, "it is found to be blocked")
    assert "blocks its event loop" in caplog.text
    assert "pass_gate (" in caplog.text
    assert not pool.find_blockage(), "a blockage is reported once"
    assert pool.next_deadline == float("inf")
    assert len(pool.withdraw()) == 1


@pytest.mark.usefixtures("_blocked_at_once", "gates")
def test_an_event_loop_blocked_by_a_running_attempt_does_not_count_as_a_blockage(
    make_pool: MakePool, gates: Any
) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.ablock_loop", "g")])
    wait_until(lambda: gates["g"].inside == 1)
    pool.submit([make_claimed(f"{APP}.anoop")])
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        assert not pool.find_blockage()
    gates["g"].open()
    wait_for_finished(pool, 2)


def test_later_jobs_complete_although_a_task_has_set_a_broken_task_factory(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.aset_factory")])
    wait_for_finished(pool, 1)
    pool.submit([make_claimed(f"{APP}.anoop")])
    [attempt] = wait_for_finished(pool, 1)
    assert attempt.outcome.status == "completed"


def test_an_error_in_beginning_a_job_is_raised_to_the_control_loop(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(EventLoopRunner, "begin_next", fail)
    pool = make_pool(1)
    pool.submit([make_claimed(f"{APP}.anoop")])
    with pytest.raises(MemoryError):
        wait_for_finished(pool, 1)
    pool.withdraw()


@pytest.mark.usefixtures("_blocked_at_once", "gates")
def test_a_query_thread_left_blocked_by_a_timed_out_attempt_is_found(
    make_pool: MakePool, gates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate", "other")])
    wait_until(lambda: gates["other"].inside == 1)
    pool.submit([make_timed(f"{WORKER_APP}.apass_gate_in_a_thread", "g")])
    wait_for_finished_in_time(pool, 1)
    end = time.monotonic() + 0.2
    while time.monotonic() < end:  # the call may go on in that thread while another attempt waits
        assert not pool.find_blockage()
    gates["other"].open()
    wait_until(pool.find_blockage, "it is found to be blocked")
    assert "the thread of its queries" in caplog.text
    assert "pass_gate (" in caplog.text


def wait_past_time_limit(pool: Pool) -> None:
    """Wait until the limits of all running attempts are over."""
    end = time.monotonic() + 2 * TIME_LIMIT
    wait_until(lambda: not enforce_limits(pool) and time.monotonic() > end)


def test_waiting_for_calls_of_other_attempts_does_not_count_for_the_time_limit(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(3)
    task = f"{WORKER_APP}.apass_gate_in_a_thread"
    pool.submit([make_claimed(task, "slow")])
    wait_until(lambda: gates["slow"].inside)
    pool.submit([make_timed(task, "quick"), make_timed(task, "hung")])
    gates["quick"].open()
    wait_past_time_limit(pool)
    assert not pool.finished
    gates["slow"].open()
    errors = [attempt.outcome.last_error for attempt in wait_for_finished_in_time(pool, 3)]
    assert errors == [None, None, f"JobTimeout: timed out after {TIME_LIMIT} s"], "the hung call is the attempt's own"


def test_waiting_for_calls_of_the_same_attempt_counts_for_the_time_limit(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(1)
    pool.submit([make_timed(f"{WORKER_APP}.apass_gates_in_a_thread", "hung", "behind it")])
    [attempt] = wait_for_finished_in_time(pool, 1)
    assert attempt.outcome.last_error == f"JobTimeout: timed out after {TIME_LIMIT} s"


def test_waiting_after_a_call_was_cancelled_counts_for_the_time_limit(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate_in_a_thread", "slow")])
    wait_until(lambda: gates["slow"].inside)
    pool.submit([make_timed(f"{WORKER_APP}.apass_gate_instead_of_a_call", "hung")])
    [attempt] = wait_for_finished_in_time(pool, 1)
    assert attempt.outcome.last_error == f"JobTimeout: timed out after {TIME_LIMIT} s"


def test_waiting_for_calls_of_other_attempts_counts_after_a_while(
    make_pool: MakePool, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "LONGEST_CLOCK_STOP", 0.1)
    pool = make_pool(2)
    task = f"{WORKER_APP}.apass_gate_in_a_thread"
    pool.submit([make_claimed(task, "hung")])
    wait_until(lambda: gates["hung"].inside)
    pool.submit([make_timed(task, "behind it")])
    [attempt] = wait_for_finished_in_time(pool, 1)
    assert attempt.outcome.last_error == f"JobTimeout: timed out after {TIME_LIMIT} s"


@pytest.mark.usefixtures("gates")
def test_a_query_thread_that_becomes_free_again_does_not_count_as_a_blockage(
    make_pool: MakePool, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(1)
    pool.submit([make_timed(f"{WORKER_APP}.apass_gate_in_a_thread", "g")])
    wait_for_finished_in_time(pool, 1)
    wait_until(lambda: pool.next_deadline < float("inf"))
    gates["g"].open()
    wait_until(lambda: pool.next_deadline == float("inf"))
    monkeypatch.setattr(event_loop, "LEFTOVER_TIME", 0.0)
    assert not pool.find_blockage()


@pytest.mark.usefixtures("gates")
def test_an_event_loop_that_answers_late_does_not_count_as_a_blockage(
    make_pool: MakePool, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into C may stop all threads, and the control loop's thread may be the first to continue."""
    monkeypatch.setattr(event_loop, "STUCK_AFTER", 0.0)
    monkeypatch.setattr(pool_module, "RESPONSE_CHANCE_SECONDS", DEADLINE)
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.aleave_blocking_background", "g")])
    wait_for_finished(pool, 1)
    wait_until(lambda: gates["g"].inside == 1)
    pool.submit([make_claimed(f"{APP}.anoop")])
    threading.Timer(0.1, gates["g"].open).start()
    assert not pool.find_blockage()
    wait_for_finished(pool, 1)


# Blocking calls of coroutines, which run in threads of the event loop

CALL_THREADS = min(32, (getattr(os, "process_cpu_count", os.cpu_count)() or 1) + 4)
"""The default number of threads of a `ThreadPoolExecutor`, by Python's documentation."""


def leave_hanging_calls(pool: Pool, gates: Any, count: int) -> None:
    """Run attempts that time out, each with a call that hangs on afterwards."""
    hanging_before = gates["hung"].inside
    pool.submit([make_timed(f"{WORKER_APP}.acall_in_a_thread", "hung") for _ in range(count)])
    calls_at_once = min(count, CALL_THREADS)
    wait_until(
        lambda: gates["hung"].inside >= hanging_before + calls_at_once,
        "the calls hang: a call that has not begun by the time limit is cancelled",
    )
    attempts = wait_for_finished_in_time(pool, count)
    assert {attempt.outcome.last_error for attempt in attempts} == {f"JobTimeout: timed out after {TIME_LIMIT} s"}


def test_later_calls_get_a_thread_although_earlier_calls_hang(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(20)
    leave_hanging_calls(pool, gates, 2 * (os.cpu_count() or 1) + 8)
    gates["quick"].open()
    pool.submit([make_claimed(f"{WORKER_APP}.acall_in_a_thread", "quick") for _ in range(20)])
    assert [attempt.outcome.status for attempt in wait_for_finished(pool, 20)] == ["completed"] * 20
    assert not pool.find_blockage()


def test_a_waiting_call_gets_a_thread_after_hanging_calls_time_out(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(40)
    pool.submit([make_timed(f"{WORKER_APP}.acall_in_a_thread", "hung") for _ in range(CALL_THREADS)])
    wait_until(lambda: gates["hung"].inside == CALL_THREADS)
    gates["quick"].open()
    pool.submit([make_claimed(f"{WORKER_APP}.acall_in_a_thread", "quick")])
    attempts = wait_for_finished_in_time(pool, CALL_THREADS + 1)
    assert [attempt.outcome.status for attempt in attempts].count("completed") == 1


@pytest.mark.usefixtures("_blocked_at_once")
def test_too_many_hanging_calls_count_as_a_blockage(
    make_pool: MakePool, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "MOST_LEFT", 3)
    pool = make_pool(3)
    leave_hanging_calls(pool, gates, 2)
    assert not pool.find_blockage()
    leave_hanging_calls(pool, gates, 1)
    wait_until(pool.find_blockage, "it is found to be blocked")


@pytest.mark.parametrize("how", ["the loop", "the executor"])
def test_after_a_task_shuts_down_the_threads_for_calls_later_calls_still_run(
    make_pool: MakePool, gates: Any, how: str
) -> None:
    gates["quick"].open()
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.ashut_down_calls", how)])
    wait_for_finished(pool, 1)
    pool.submit([make_claimed(f"{WORKER_APP}.acall_in_a_thread", "quick")])
    assert [attempt.outcome.last_error for attempt in wait_for_finished(pool, 1)] == [None]


# Connections


@pytest.mark.django_db(transaction=True)
def test_an_attempt_whose_connection_is_silent_ends_and_the_next_one_can_write(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.lose_network"), make_claimed(f"{WORKER_APP}.write", "after")])
    assert [attempt.outcome.status for attempt in wait_for_finished(pool, 2)] == ["completed", "completed"]
    assert Ledger.objects.get().entry == "after"
    while worker_jobs.lost_networks:
        worker_jobs.lost_networks.pop().close()


def test_a_failed_coroutine_is_reported_while_the_query_thread_is_busy(make_pool: MakePool, gates: Any) -> None:
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.apass_gate_in_a_thread", "busy")])
    wait_until(lambda: gates["busy"].inside == 1)
    pool.submit([make_claimed(f"{APP}.afail") for _ in range(3)])
    assert {attempt.outcome.last_error for attempt in wait_for_finished(pool, 3)} == {"ValueError: as asked"}
    assert gates["busy"].inside == 1
    gates["busy"].open()
    [attempt] = wait_for_finished(pool, 1)
    assert attempt.outcome.status == "completed"


MISTREATMENTS_THAT_RAISE = {"lose_backend"}
"""Ways to mistreat a connection that end the job with an error. After an error, the worker tidies the query thread of
`async def` tasks."""

KINDS_AND_MISTREATMENTS = [("", how) for how in sorted(MISTREATMENTS)] + [
    ("a", how) for how in sorted(MISTREATMENTS_THAT_RAISE | {"close"})
]


@pytest.fixture
def _close_connection_of_coroutines() -> Iterator[None]:
    yield
    close_connections_of_asgiref()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_close_connection_of_coroutines")
@pytest.mark.parametrize(("kind", "how"), KINDS_AND_MISTREATMENTS)
@pytest.mark.parametrize("conn_max_age", [0, None], ids=["a connection a job", "connections kept"])
def test_the_next_task_can_write_after_a_task_mistreats_the_connection(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, kind: str, how: str, conn_max_age: int | None
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", conn_max_age)
    pool = make_pool(1)
    for number in range(2):
        pool.submit([make_claimed(f"{WORKER_APP}.{kind}mistreat_connection", how)])
        pool.submit([make_claimed(f"{WORKER_APP}.{kind}write", f"after {number}")])
    attempts = wait_for_finished(pool, 4)
    assert [attempt.outcome.last_error for attempt in attempts if attempt.job.task.endswith("write")] == [None, None]
    assert set(Ledger.objects.values_list("entry", flat=True)) == {"after 0", "after 1"}


@pytest.mark.django_db(transaction=True)
def test_on_commit_hooks_that_a_task_left_are_not_called_in_the_next_task(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)
    worker_jobs.hooked.clear()
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.mistreat_connection", "leave_hook")])
    pool.submit([make_claimed(f"{WORKER_APP}.write_and_hook", "after")])
    assert [attempt.outcome.last_error for attempt in wait_for_finished(pool, 2)] == [None, None]
    assert worker_jobs.hooked == ["after"]


@pytest.mark.django_db(transaction=True)
def test_with_conn_max_age_none_all_jobs_use_one_connection(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)
    connections_opened: list[Any] = []
    from django.db.backends.signals import connection_created

    def record_connection(**event: Any) -> None:
        connections_opened.append(event)

    connection_created.connect(record_connection)
    try:
        pool = make_pool(1)
        pool.submit([make_claimed(f"{WORKER_APP}.write", "x") for _ in range(5)])
        wait_for_finished(pool, 5)
    finally:
        connection_created.disconnect(record_connection)
    assert len(connections_opened) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_close_connection_of_coroutines")
def test_the_connection_of_coroutines_is_not_closed_as_idle_while_one_runs(
    make_pool: MakePool, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "IDLE_TIME", 0.2)
    monkeypatch.setattr(thread_connections, "IDLE_TIME", 0.2)
    pool = make_pool(1)
    loop = pool.runners[EVENT_LOOP]
    assert isinstance(loop, EventLoopRunner)
    pool.submit([make_claimed(f"{WORKER_APP}.awrite", "x")])
    wait_for_finished(pool, 1)
    pool.submit([make_claimed(f"{WORKER_APP}.abackends", "g")])
    wait_until(lambda: gates["g"].inside == 1)
    wait_until(lambda: loop.idle_timer is None, "the time to close idle connections has come")
    gates["g"].open()
    [attempt] = wait_for_finished(pool, 1)
    backend_before, backend_after = json.loads(attempt.outcome.result or "")
    assert backend_before == backend_after


@pytest.mark.django_db(transaction=True)
def test_a_thread_closes_its_connections_at_its_end(make_pool: MakePool) -> None:
    backends_before = backends()
    pool = make_pool(2)
    pool.submit([make_claimed(f"{WORKER_APP}.write", "x") for _ in range(5)])
    wait_for_finished(pool, 5)
    assert backends() - backends_before
    pool.stop()
    wait_until(lambda: not backends() - backends_before, "the threads' sessions are over")


def test_the_slot_of_a_thread_that_ends_while_the_pool_gives_it_up_becomes_free(
    make_pool: MakePool, gates: Any
) -> None:
    """The control loop reports the attempt, but the thread has ended before the pool could replace it."""
    pool = make_pool(1)
    pool.submit([make_claimed(f"{WORKER_APP}.pass_gate", "g")])
    wait_until(lambda: gates["g"].inside == 1)
    (running_attempt_of_thread,) = pool.executor.interrupter.attempts
    assert running_attempt_of_thread.take_report()
    gates["g"].open()
    wait_until(lambda: running_attempt_of_thread.has_ended)
    running_attempt_of_thread.thread = 0  # as if the thread had ended
    pool.runners[THREADS].give_up(running_attempt_of_thread)
    assert pool.unfinished(THREADS) == 0
