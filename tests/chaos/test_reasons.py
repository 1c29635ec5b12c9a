"""A fault or a log line excuses some violations. Each test also checks that the violation is found without it."""

from dataclasses import replace

from . import forgeries
from .evidence import CANCELLED, LOG_BLOCKED, POSTGRES, Death, Line, Stop
from .evidence_builder import OTHER_PID, without_violations
from .figures import repeats
from .invariants import (
    INVARIANTS,
    deaths_are_counted_right,
    deaths_are_noticed,
    live_workers_keep_their_jobs,
    nothing_waits_for_long,
    repeats_are_explained,
    stops_are_clean,
)
from .reasons import Reason, reason_of_repeat


def test_an_unlogged_recovery_is_excused_by_the_death_of_the_supervisor() -> None:
    builder = without_violations()
    builder.evidence.log = []
    recovery = next(change for change in builder.evidence.changes if change.verb == "recover")
    builder.add_fault("supervisor killed", began=0, ended=0, deaths=[Death(pid=9, at=recovery.at + 0.1, alone=False)])
    assert list(repeats_are_explained(builder.evidence)) == []


def test_an_unlogged_recovery_is_excused_by_a_lost_connection_of_the_supervisor() -> None:
    builder = without_violations()
    recovery = next(change for change in builder.evidence.changes if change.verb == "recover")
    connection_lost = 'database lost who="{}" retry_in=0.3s error="server closed the connection unexpectedly"'
    builder.evidence.log = [
        Line(recovery.at - 60, "machine-2", connection_lost.format("supervisor machine-2")),
        Line(recovery.at - 5, "machine-2", connection_lost.format("worker machine-2/1")),
    ]
    assert len(list(repeats_are_explained(builder.evidence))) == 1, "a loss long before, or of a worker, is no excuse"
    builder.evidence.log.append(Line(recovery.at - 5, "machine-2", connection_lost.format("supervisor machine-2")))
    assert list(repeats_are_explained(builder.evidence)) == []


def test_a_repeat_is_explained_by_a_log_line_or_a_stored_error() -> None:
    builder = without_violations()
    builder.defer(7)
    builder.claim(7)
    builder.write_entries(7, "end")
    builder.settle(7, "queued", error="OperationalError: the connection broke after the commit")
    retry_line = Line(builder.time, "machine-1", "12:00:00 WARNING job retrying task=tests.work id=7 attempt=1/3")
    builder.claim(7)
    builder.write_entries(7, "end")
    builder.settle(7)
    (held_lease,) = (held_lease for held_lease in repeats(builder.evidence) if held_lease.claim.job == 7)
    assert reason_of_repeat(builder.evidence, held_lease) is Reason.ROW
    builder.evidence = replace(builder.evidence, log=[retry_line])
    assert reason_of_repeat(builder.evidence, held_lease) is Reason.LINE


def test_a_late_log_line_is_excused_while_nobody_read_the_log() -> None:
    builder = without_violations()
    forgeries.log_a_recovery_too_late(builder)
    assert len(list(repeats_are_explained(builder.evidence))) == 1
    recovered_at = next(change.at for change in builder.evidence.changes if change.verb == "recover")
    fault = builder.add_fault(LOG_BLOCKED, began=recovered_at - 1, ended=recovered_at + 9)
    assert list(repeats_are_explained(builder.evidence)) == []
    fault.target = "machine-2"
    assert len(list(repeats_are_explained(builder.evidence))) == 1


def test_the_death_of_a_worker_explains_the_release_of_its_job() -> None:
    builder = without_violations()
    forgeries.release_without_a_log_line(builder)
    assert len(list(repeats_are_explained(builder.evidence))) == 1
    release = next(change for change in builder.evidence.changes if change.job == 7 and change.verb == "release")
    death_line = "12:00:00 ERROR   worker died worker=machine-2/1 cause=..."
    builder.evidence.log.append(Line(release.at - 60, "machine-2", death_line))
    assert len(list(repeats_are_explained(builder.evidence))) == 1, "an earlier process of this name died"
    builder.evidence.log.append(Line(release.at, "machine-2", death_line))
    assert list(repeats_are_explained(builder.evidence)) == []


def test_recovering_the_job_of_a_live_worker_is_excused_if_its_machine_was_silent() -> None:
    builder = without_violations()
    forgeries.recover_a_job_of_a_live_worker(builder)
    taken_at = builder.evidence.changes[-3].at  # the recovery; after it the job was claimed and settled
    fault = builder.add_fault("supervisor paused", began=taken_at - 5, ended=taken_at + 5, slows=False)
    assert len(list(live_workers_keep_their_jobs(builder.evidence))) == 1
    fault.silences = True
    assert list(live_workers_keep_their_jobs(builder.evidence)) == []
    fault.target = "machine-2"
    assert len(list(live_workers_keep_their_jobs(builder.evidence))) == 1
    fault.deaths = [Death(OTHER_PID, taken_at - 5, alone=False)]
    assert list(live_workers_keep_their_jobs(builder.evidence)) == [], "the worker itself was paused"


def test_a_worker_may_end_if_a_line_says_that_it_was_recycled() -> None:
    builder = without_violations()
    forgeries.end_a_worker_without_a_reason(builder)
    assert len(list(live_workers_keep_their_jobs(builder.evidence))) == 1
    builder.add_log_line(
        '12:00:00 INFO    worker recycled worker=machine-1/2 reason="an attempt in it was interrupted"'
    )
    assert list(live_workers_keep_their_jobs(builder.evidence)) == []


def test_a_job_that_killed_three_workers_may_fail() -> None:
    builder = without_violations()
    builder.end_process(OTHER_PID)
    forgeries.fail_for_deaths_of_one_worker(builder, "victim", "other", "third")
    assert list(deaths_are_counted_right(builder.evidence)) == []


def test_a_job_whose_worker_died_in_its_last_attempt_may_fail() -> None:
    builder = without_violations()
    forgeries.fail_for_deaths_of_one_worker(builder, "victim")
    assert len(list(deaths_are_counted_right(builder.evidence))) == 1
    last_change = builder.evidence.changes[-1]
    builder.evidence.changes[-1] = last_change._replace(attempts=last_change.max_attempts)
    builder.evidence = replace(builder.evidence)
    assert list(deaths_are_counted_right(builder.evidence)) == []


def test_long_waiting_is_excused_by_a_fault_of_the_same_machine() -> None:
    builder = without_violations()
    forgeries.begin_long_after_the_claim(builder)
    fault = builder.add_fault("supervisor paused", began=161, ended=162, slows=False)
    assert len(list(nothing_waits_for_long(builder.evidence))) == 1
    fault.slows = True
    assert list(nothing_waits_for_long(builder.evidence)) == []
    fault.target = "machine-2"
    assert len(list(nothing_waits_for_long(builder.evidence))) == 1


def test_a_late_recovery_is_excused_while_postgresql_was_not_available() -> None:
    builder = without_violations()
    forgeries.recover_after(builder, alone=True, seconds=5)
    assert len(list(deaths_are_noticed(builder.evidence))) == 1
    fault = builder.add_fault("network stalled", began=160.5, ended=163)
    fault.target = "machine-2"
    assert len(list(deaths_are_noticed(builder.evidence))) == 1, "the supervisor is on machine-1"
    fault.target = POSTGRES
    assert list(deaths_are_noticed(builder.evidence)) == []


def test_a_charged_attempt_after_sigterm_is_excused_only_during_an_outage() -> None:
    builder = without_violations()
    forgeries.charge_a_job_for_sigterm(builder)
    builder.add_fault("SIGTERM", began=149, ended=149.5, stops=[Stop(frozenset(), began=149, ended=149.5, code=0)])
    assert len(list(stops_are_clean(builder.evidence))) == 1
    builder.add_fault("PostgreSQL crashed", began=149, ended=149.5).target = POSTGRES
    assert list(stops_are_clean(builder.evidence)) == []


def test_a_cancelled_job_and_a_manual_retry_are_legal() -> None:
    builder = without_violations()
    builder.defer(7)
    builder.claim(7)
    builder.settle(7, "discarded", error=CANCELLED, ran_under=None)
    builder.change(7, "discarded", "queued", lease=3, attempts=0)
    builder.claim(7)
    builder.settle(7)
    assert [list(invariant(builder.evidence)) for invariant in INVARIANTS] == [[]] * len(INVARIANTS)
