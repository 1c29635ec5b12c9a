"""What is forgiven, and why: each time also that the same is not forgiven without its reason."""

from dataclasses import replace

from . import forgeries
from .evidence import CANCELLED, LOG_BLOCKED, POSTGRES, Death, Line, Stop
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
from .story import uneventful


def test_an_unlogged_recovery_is_forgiven_after_a_supervisor_death() -> None:
    story = uneventful()
    story.evidence.log = []
    recovery = next(change for change in story.evidence.changes if change.verb == "recover")
    story.fault("supervisor killed", began=0, ended=0, deaths=[Death(9, recovery.at + 0.1, alone=False)])
    assert list(repeats_are_explained(story.evidence)) == []


def test_an_unlogged_recovery_is_forgiven_after_a_lost_answer() -> None:
    story = uneventful()
    recovery = next(change for change in story.evidence.changes if change.verb == "recover")
    lost = 'database lost who="{}" retry_in=0.3s error="server closed the connection unexpectedly"'
    story.evidence.log = [
        Line(recovery.at - 60, "machine-2", lost.format("supervisor machine-2")),
        Line(recovery.at - 5, "machine-2", lost.format("worker machine-2/1")),
    ]
    assert len(list(repeats_are_explained(story.evidence))) == 1, "it was long before, or not a supervisor"
    story.evidence.log.append(Line(recovery.at - 5, "machine-2", lost.format("supervisor machine-2")))
    assert list(repeats_are_explained(story.evidence)) == []


def test_a_repeat_is_explained_by_a_log_line_or_a_stored_error() -> None:
    story = uneventful()
    story.defer(7)
    story.claim(7)
    story.write(7, "end")
    story.settle(7, "queued", error="OperationalError: the connection broke after the commit")
    told = Line(story.time, "machine-1", "12:00:00 WARNING job retrying task=tests.work id=7 attempt=1/3")
    story.claim(7)
    story.write(7, "end")
    story.settle(7)
    (held,) = (held for held in repeats(story.evidence) if held.claim.job == 7)
    assert reason_of_repeat(story.evidence, held) is Reason.ROW
    story.evidence = replace(story.evidence, log=[told])
    assert reason_of_repeat(story.evidence, held) is Reason.LINE


def test_a_line_may_come_late_where_the_log_was_blocked() -> None:
    story = uneventful()
    forgeries.speak_of_a_recovery_too_late(story)
    assert len(list(repeats_are_explained(story.evidence))) == 1
    recovered_at = next(change.at for change in story.evidence.changes if change.verb == "recover")
    fault = story.fault(LOG_BLOCKED, began=recovered_at - 1, ended=recovered_at + 9)
    assert list(repeats_are_explained(story.evidence)) == []
    fault.target = "machine-2"
    assert len(list(repeats_are_explained(story.evidence))) == 1


def test_the_death_of_its_worker_explains_why_a_job_was_given_back() -> None:
    story = uneventful()
    forgeries.give_back_in_silence(story)
    assert len(list(repeats_are_explained(story.evidence))) == 1
    released = next(change for change in story.evidence.changes if change.job == 7 and change.verb == "release")
    died = "12:00:00 ERROR   worker died worker=machine-2/1 cause=..."
    story.evidence.log.append(Line(released.at - 60, "machine-2", died))
    assert len(list(repeats_are_explained(story.evidence))) == 1, "it was another process, before"
    story.evidence.log.append(Line(released.at, "machine-2", died))
    assert list(repeats_are_explained(story.evidence)) == []


def test_a_job_is_rightly_taken_from_a_worker_whose_machine_is_silent() -> None:
    story = uneventful()
    forgeries.take_from_the_living(story)
    taken_at = story.evidence.changes[-3].at
    fault = story.fault("supervisor paused", began=taken_at - 5, ended=taken_at + 5, slows=False)
    assert len(list(live_workers_keep_their_jobs(story.evidence))) == 1
    fault.silences = True
    assert list(live_workers_keep_their_jobs(story.evidence)) == []
    fault.target = "machine-2"
    assert len(list(live_workers_keep_their_jobs(story.evidence))) == 1
    fault.deaths = [Death(11, taken_at - 5, alone=False)]
    assert list(live_workers_keep_their_jobs(story.evidence)) == [], "it was paused"


def test_a_worker_may_end_that_is_replaced_after_an_interruption() -> None:
    story = uneventful()
    forgeries.end_for_no_reason(story)
    assert len(list(live_workers_keep_their_jobs(story.evidence))) == 1
    story.say('12:00:00 INFO    worker recycled worker=machine-1/2 reason="an attempt in it was interrupted"')
    assert list(live_workers_keep_their_jobs(story.evidence)) == []


def test_a_job_that_killed_three_workers_rightly_fails() -> None:
    story = uneventful()
    story.end(11)
    forgeries.fail_for_one_worker(story, "victim", "other", "third")
    assert list(deaths_are_counted_right(story.evidence)) == []


def test_a_job_whose_worker_died_in_its_last_attempt_rightly_fails() -> None:
    story = uneventful()
    forgeries.fail_for_one_worker(story, "victim")
    assert len(list(deaths_are_counted_right(story.evidence))) == 1
    last = story.evidence.changes[-1]
    story.evidence.changes[-1] = last._replace(attempts=last.max_attempts)
    story.evidence = replace(story.evidence)
    assert list(deaths_are_counted_right(story.evidence)) == []


def test_waiting_is_forgiven_where_something_was_broken_that_the_worker_needs() -> None:
    story = uneventful()
    forgeries.hoard(story)
    fault = story.fault("supervisor paused", began=161, ended=162, slows=False)
    assert len(list(nothing_waits_for_long(story.evidence))) == 1
    fault.slows = True
    assert list(nothing_waits_for_long(story.evidence)) == []
    fault.target = "machine-2"
    assert len(list(nothing_waits_for_long(story.evidence))) == 1


def test_a_late_recovery_is_forgiven_while_there_was_no_database() -> None:
    story = uneventful()
    forgeries.die(story, alone=True, seconds=5)
    assert len(list(deaths_are_noticed(story.evidence))) == 1
    fault = story.fault("network stalled", began=160.5, ended=163)
    fault.target = "machine-2"
    assert len(list(deaths_are_noticed(story.evidence))) == 1, "the supervisor is on machine-1"
    fault.target = POSTGRES
    assert list(deaths_are_noticed(story.evidence)) == []


def test_a_charge_after_sigterm_is_forgiven_only_during_an_outage() -> None:
    story = uneventful()
    forgeries.charge_a_job_for_sigterm(story)
    story.fault("SIGTERM", began=149, ended=149.5, stops=[Stop(frozenset(), 149, 149.5, 0)])
    assert len(list(stops_are_clean(story.evidence))) == 1
    story.fault("PostgreSQL crashed", began=149, ended=149.5).target = POSTGRES
    assert list(stops_are_clean(story.evidence)) == []


def test_a_cancelled_job_and_a_manual_retry_are_legal() -> None:
    story = uneventful()
    story.defer(7)
    story.claim(7)
    story.settle(7, "discarded", error=CANCELLED, ran_under=None)
    story.change(7, "discarded", "queued", lease=3, attempts=0)
    story.claim(7)
    story.settle(7)
    assert [list(invariant(story.evidence)) for invariant in INVARIANTS] == [[]] * len(INVARIANTS)
