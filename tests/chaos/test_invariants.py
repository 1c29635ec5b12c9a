"""Each invariant finds the violation that it is about in forged evidence, and nothing in evidence without one."""

from collections.abc import Callable
from typing import Any

import pytest

from .evidence import CANCELLED, POSTGRES, Change, Death, Entry, Evidence, Fault, Promise, Stop
from .invariants import (
    INVARIANTS,
    atomic_effects_once,
    attempts_are_bounded,
    deaths_are_noticed,
    nothing_is_lost,
    one_live_lease,
    repeats_are_explained,
    settled_by_its_holder,
    speed_is_back,
    stops_are_clean,
    unique_keys_are_unique,
)

DIED = "django_skipqueue.exceptions.WorkerDied: worker died: signal 9 (SIGKILL)"
RECOVERED = "job recovered task=tests.chaos.jobs.work id=3 attempt=1 worker=machine-1/1 claimed=00:00:00 now=queued"
GAVE_BACK = 'jobs released worker=machine-1/2 count=2 reason="the worker died before it began them"'


class Story:
    """Evidence made up step by step, as the witness would have written it. `time` is that of the next change."""

    def __init__(self) -> None:
        self.time = 100.0
        self.evidence = Evidence(
            processes={"victim": 10, "other": 11, "third": 12},
            names={"victim": "machine-1/1", "other": "machine-1/2", "third": "machine-2/1"},
            calm_from=100.0,
            calm_again=130.0,
            load_until=145.0,
        )

    def defer(self, job: int, *, key: str | None = None, atomic: bool = False) -> None:
        self.evidence.promises.append(Promise(f"token {job}", job, True))
        self.evidence.atomic |= {job} if atomic else set()
        self.change(job, None, "queued", lease=0, attempts=0, unique_key=key)

    def claim(self, job: int, holder: str = "other") -> None:
        last = self.last(job)
        self.change(job, "queued", "running", lease=last.lease + 1, attempts=last.attempts + 1, holder=holder)

    def write(self, job: int, *what: str) -> None:
        for each in what:
            self.evidence.entries.append(Entry(job, self.last(job).lease, each, self.time))

    def settle(self, job: int, status: str = "completed", **values: Any) -> None:
        lease = self.last(job).lease
        self.change(job, "running", status, **{"lease": lease + 1, "ran_under": lease, **values})

    def recover(self, job: int) -> None:
        self.change(job, "running", "queued", lease=self.last(job).lease + 1, error=DIED)

    def release(self, job: int) -> None:
        last = self.last(job)
        self.change(job, "running", "queued", lease=last.lease + 1, attempts=last.attempts - 1, holder="")

    def change(self, job: int, before: str | None, after: str, **values: Any) -> None:
        last = self.last(job) if before else None
        known = {
            "unique_key": last.unique_key if last else None,
            "lease": last.lease if last else 0,
            "attempts": last.attempts if last else 0,
            "holder": last.holder if last else "",
        }
        old = (last.lease, last.attempts, last.holder) if last else (None, None, None)
        self.evidence.changes.append(
            Change(
                **{
                    "seq": len(self.evidence.changes) + 1,
                    "at": self.time,
                    "job": job,
                    "before": before,
                    "after": after,
                    "lease_before": old[0],
                    "attempts_before": old[1],
                    "max_attempts": 3,
                    "holder_before": old[2],
                    "ran_under": None,
                    "error": None,
                    **known,
                    **values,
                }
            )
        )
        self.evidence.statuses[job] = after
        self.time += 0.01

    def last(self, job: int) -> Change:
        return next(change for change in reversed(self.evidence.changes) if change.job == job)

    def fault(self, what: str = "worker killed", *, began: float, ended: float, **values: Any) -> Fault:
        fault = Fault(what, "machine-1", began, ended, **values)
        self.evidence.faults.append(fault)
        return fault

    def at(self, time: float) -> None:
        """The steady load up to this time: ten jobs a second, each with a number of its own."""
        while self.time < time:
            job, began = round(self.time * 10), self.time
            self.defer(job)
            self.claim(job)
            self.settle(job)
            self.time = began + 0.1


def uneventful() -> Story:
    """A worker dies with one job, a `runworker` stops, and all is as it should be."""
    story = Story()
    story.at(110)
    story.defer(1)
    story.claim(1)
    story.write(1, "begin", "end")
    story.settle(1)
    story.defer(2, atomic=True)
    story.claim(2)
    story.write(2, "effect")
    story.settle(2)
    story.defer(3)
    story.claim(3, "victim")
    story.write(3, "begin", "end")
    story.fault(began=story.time, ended=story.time, deaths=[Death(10, story.time, alone=True)])
    story.time += 0.5
    story.recover(3)
    story.evidence.log = f"{RECOVERED}\n{GAVE_BACK}"
    story.claim(3, "other")
    story.write(3, "begin", "end")
    story.settle(3)
    for job in (4, 5):
        story.defer(job, key="the key")
        story.claim(job)
        story.settle(job)
    story.at(120)
    story.defer(6)
    story.claim(6, "third")
    stop = Stop(frozenset({12}), story.time, story.time + 1, 0)
    story.release(6)
    story.fault("SIGTERM", began=stop.began, ended=stop.ended, stops=[stop])
    story.claim(6)
    story.settle(6)
    story.at(146)
    return story


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    evidence = uneventful().evidence
    assert [list(invariant(evidence)) for invariant in INVARIANTS] == [[]] * 10


# What is lost


def lose_a_row(story: Story) -> None:
    del story.evidence.statuses[1]


def leave_a_job_running(story: Story) -> None:
    story.defer(7)
    story.claim(7)


def leave_a_job_of_a_transaction_that_was_rolled_back(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.settle(7)
    story.evidence.promises.pop()


# Leases


def claim_a_running_job(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.change(7, "running", "running", lease=2, holder="third")
    story.settle(7)


def give_a_lease_twice(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.recover(7)
    story.change(7, "queued", "running", holder="third")
    story.settle(7)


def change_a_row_behind_the_witness(story: Story) -> None:
    story.defer(7)
    story.change(7, "failed", "queued", lease=1)
    story.claim(7)
    story.settle(7)


def begin_twice_under_one_lease(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.write(7, "begin", "begin")
    story.settle(7)


def begin_under_no_lease(story: Story) -> None:
    story.evidence.entries.append(Entry(1, 99, "begin", 0.0))


# Settles


def write_the_outcome_of_a_lost_lease(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.recover(7)
    story.claim(7)
    story.settle(7, ran_under=1)


# Atomic jobs


def have_an_effect_twice(story: Story) -> None:
    story.write(2, "effect")


def have_no_effect(story: Story) -> None:
    story.defer(7, atomic=True)
    story.claim(7)
    story.settle(7)


def have_an_effect_and_fail(story: Story) -> None:
    story.defer(7, atomic=True)
    story.claim(7)
    story.write(7, "effect")
    story.settle(7, "failed", error="ValueError: no")


# Repeats


def repeat_what_was_completed(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.write(7, "end")
    story.settle(7, "queued")
    story.claim(7)
    story.write(7, "end")
    story.settle(7)


def recover_in_silence(story: Story) -> None:
    story.evidence.log = ""


def give_back_in_silence(story: Story) -> None:
    story.defer(7)
    story.claim(7, "third")
    story.write(7, "end")
    story.release(7)
    story.claim(7)
    story.write(7, "end")
    story.settle(7)


# Attempts


def try_too_often(story: Story) -> None:
    story.defer(7)
    story.change(7, "queued", "running", lease=1, attempts=4)
    story.settle(7)


def refund_too_much(story: Story) -> None:
    story.defer(7)
    story.claim(7)
    story.settle(7, attempts=-1)


# Unique keys


def hold_a_key_twice(story: Story) -> None:
    story.defer(7, key="the key")
    story.defer(8, key="the key")
    for job in (7, 8):
        story.claim(job)
        story.settle(job)


# SIGTERM


def hang_after_sigterm(story: Story) -> None:
    story.fault("SIGTERM", began=150, ended=190, stops=[Stop(frozenset({12}), 150, 190, None)])


def end_with_an_error(story: Story) -> None:
    story.fault("SIGTERM", began=150, ended=151, stops=[Stop(frozenset({2, 12}), 150, 151, 1)])


def leave_a_job_behind_after_sigterm(story: Story) -> None:
    story.time = 150
    story.defer(7)
    story.claim(7, "third")
    story.time = 155
    story.release(7)
    story.claim(7)
    story.settle(7)
    story.fault("SIGTERM", began=151, ended=152, stops=[Stop(frozenset({12}), 151, 152, 0)])


def charge_a_job_for_sigterm(story: Story) -> None:
    story.time = 150
    story.defer(7)
    story.claim(7, "third")
    story.recover(7)
    story.claim(7)
    story.settle(7)
    story.fault("SIGTERM", began=150.01, ended=152, stops=[Stop(frozenset({12}), 150.01, 152, 0)])


def release_a_job_after_sigterm_and_charge_it(story: Story) -> None:
    story.time = 150
    story.defer(7)
    story.claim(7, "third")
    story.change(7, "running", "queued", lease=2, holder="")
    story.claim(7)
    story.settle(7)
    story.fault("SIGTERM", began=150.01, ended=152, stops=[Stop(frozenset({12}), 150.01, 152, 0)])


# Speed


def stay_slow(story: Story) -> None:
    late = [change for change in story.evidence.changes if change.at > 130]
    for change in late[::2]:
        story.evidence.changes.remove(change)


# Deaths


def die(story: Story, *, alone: bool, seconds: float) -> None:
    story.time = 160
    story.defer(7)
    story.claim(7, "third")
    story.fault("a death", began=story.time, ended=story.time, deaths=[Death(12, story.time, alone=alone)])
    story.time += seconds
    story.recover(7)
    story.claim(7)
    story.settle(7)


def notice_the_death_of_a_process_late(story: Story) -> None:
    die(story, alone=True, seconds=2.1)


def notice_the_death_of_a_machine_late(story: Story) -> None:
    die(story, alone=False, seconds=9.1)


def never_notice_a_death(story: Story) -> None:
    story.defer(7)
    story.claim(7, "third")
    story.fault(began=story.time, ended=story.time, deaths=[Death(12, story.time, alone=True)])


FORGERIES: list[tuple[Callable[[Evidence], Any], Callable[[Story], None], str]] = [
    (nothing_is_lost, lose_a_row, "job 1 was committed, and has no row"),
    (nothing_is_lost, leave_a_job_running, "job 7 is still running"),
    (nothing_is_lost, leave_a_job_of_a_transaction_that_was_rolled_back, "job 7 has a row"),
    (one_live_lease, claim_a_running_job, "job 7 went from running to running"),
    (one_live_lease, give_a_lease_twice, "job 7 kept lease 2 through a claim"),
    (one_live_lease, change_a_row_behind_the_witness, "job 7 was queued under lease 0"),
    (one_live_lease, begin_twice_under_one_lease, "job 7 began 2 times under lease 1"),
    (one_live_lease, begin_under_no_lease, "job 1 began under lease 99, which was never given"),
    (settled_by_its_holder, write_the_outcome_of_a_lost_lease, "job 7 held lease 3, and an outcome of lease 1"),
    (atomic_effects_once, have_an_effect_twice, "job 2 is completed, and its effect is there 2 times"),
    (atomic_effects_once, have_no_effect, "job 7 is completed, and its effect is there 0 times"),
    (atomic_effects_once, have_an_effect_and_fail, "job 7 is failed, and its effect is there 1 times"),
    (repeats_are_explained, repeat_what_was_completed, "job 7 ran to its end under lease 1 and again: its outcome"),
    (repeats_are_explained, recover_in_silence, "job 3 ran to its end under lease 1 and again: no log line"),
    (repeats_are_explained, give_back_in_silence, "job 7 ran to its end under lease 1 and again: no log line"),
    (attempts_are_bounded, try_too_often, "job 7 was at attempt 4 of 3"),
    (attempts_are_bounded, refund_too_much, "job 7 was at attempt -1 of 3"),
    (unique_keys_are_unique, hold_a_key_twice, "'the key' was alive as job 7 and as job 8"),
    (stops_are_clean, hang_after_sigterm, "machine-1 did not end"),
    (stops_are_clean, end_with_an_error, "machine-1 ended with exit code 1"),
    (stops_are_clean, leave_a_job_behind_after_sigterm, "job 7 was left running after SIGTERM"),
    (stops_are_clean, charge_a_job_for_sigterm, "job 7 was charged an attempt for a SIGTERM"),
    (stops_are_clean, release_a_job_after_sigterm_and_charge_it, "job 7 was charged an attempt for a SIGTERM"),
    (speed_is_back, stay_slow, "10 s after the last fault"),
    (deaths_are_noticed, notice_the_death_of_a_process_late, "was taken back after 2.1 s"),
    (deaths_are_noticed, notice_the_death_of_a_machine_late, "was taken back after 9.1 s"),
    (deaths_are_noticed, never_notice_a_death, "was taken back never"),
]


@pytest.mark.parametrize(("invariant", "forge", "found"), FORGERIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_violation_is_found(invariant: Callable[[Evidence], Any], forge: Callable[[Story], None], found: str) -> None:
    story = uneventful()
    forge(story)
    assert any(found in violation for violation in invariant(story.evidence))


def test_every_invariant_has_a_forgery() -> None:
    assert {invariant for invariant, _, _ in FORGERIES} == set(INVARIANTS)


# What is forgiven, and why


def test_a_recovery_without_a_line_is_forgiven_where_a_supervisor_died_before_it_could_write_it() -> None:
    story = uneventful()
    story.evidence.log = ""
    recovery = next(change for change in story.evidence.changes if change.verb == "recover")
    story.fault("supervisor killed", began=0, ended=0, deaths=[Death(9, recovery.at + 0.1, alone=False)])
    assert list(repeats_are_explained(story.evidence)) == []


def test_a_repeat_after_an_attempt_that_failed_is_explained_by_its_error() -> None:
    story = uneventful()
    story.defer(7)
    story.claim(7)
    story.write(7, "end")
    story.settle(7, "queued", error="OperationalError: the connection broke after the commit")
    story.claim(7)
    story.write(7, "end")
    story.settle(7)
    assert list(repeats_are_explained(story.evidence)) == []


def test_a_late_recovery_is_forgiven_while_there_was_no_database() -> None:
    story = uneventful()
    die(story, alone=True, seconds=5)
    assert len(list(deaths_are_noticed(story.evidence))) == 1
    fault = story.fault("network stalled", began=160.5, ended=163)
    fault.target = "machine-2"
    assert len(list(deaths_are_noticed(story.evidence))) == 1, "the supervisor is on machine-1"
    fault.target = POSTGRES
    assert list(deaths_are_noticed(story.evidence)) == []


def test_a_charge_after_sigterm_is_forgiven_while_there_was_no_database_and_not_for_other_stops() -> None:
    story = uneventful()
    charge_a_job_for_sigterm(story)
    story.fault("SIGTERM", began=149, ended=149.5)
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
    assert [list(invariant(story.evidence)) for invariant in INVARIANTS] == [[]] * 10
