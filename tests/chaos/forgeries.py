"""Violations, each to be forged into a story that has none.

Invariant: each violates one invariant, which `test_invariants` names beside it.
"""

from .evidence import URGENT, Death, Entry, Stop
from .story import Story

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
    story.change(7, "running", "running", lease=2, attempts=2, holder="third")
    story.settle(7)


def take_over(story: Story, *, deaths: int = 2, claimed_by: str = "third", holder: str = "alone") -> None:
    """Have a process take a job over; with these defaults it may."""
    story.defer(7)
    for _ in range(deaths):
        story.claim(7, "victim")
        story.recover(7)
    story.claim(7, claimed_by)
    story.take_over(7, holder)
    story.settle(7)


def take_over_after_one_death(story: Story) -> None:
    take_over(story, deaths=1)


def take_over_on_another_machine(story: Story) -> None:
    take_over(story, claimed_by="other")


def take_over_as_an_ordinary_worker(story: Story) -> None:
    take_over(story, claimed_by="victim", holder="other")


def take_over_a_job_that_has_begun(story: Story) -> None:
    take_over(story)
    claim = next(change for change in reversed(story.evidence.changes) if change.verb == "claim" and change.job == 7)
    story.evidence.entries.append(Entry(7, claim.lease, "begin", claim.at))


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
    story.evidence.log = []


def speak_of_a_recovery_too_late(story: Story) -> None:
    story.evidence.log = [line._replace(at=line.at + 10) for line in story.evidence.log]


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


def stand_still(story: Story) -> None:
    """And then finish it all at once."""
    for number, change in enumerate(story.evidence.changes):
        if 130 < change.at < 141:
            story.evidence.changes[number] = change._replace(at=141)


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


def take_from_the_living(story: Story) -> None:
    story.defer(7)
    story.claim(7, "other")
    story.recover(7)
    story.claim(7)
    story.settle(7)


def end_for_no_reason(story: Story) -> None:
    story.time = 200
    story.end(11)


def fail_for_one_worker(story: Story, *holders: str) -> None:
    story.defer(7)
    for holder in holders or ("victim", "victim", "victim"):
        story.claim(7, holder)
        story.recover(7)
    story.evidence.changes[-1] = story.evidence.changes[-1]._replace(after="failed", max_attempts=50)


def fail_for_the_living(story: Story) -> None:
    fail_for_one_worker(story, "other", "other", "other")


# Places, waiting, and what is overdue


def complete_without_a_row(story: Story) -> None:
    story.evidence.placed.add(7)
    story.defer(7)
    story.claim(7)
    story.settle(7)


def write_elsewhere(story: Story) -> None:
    story.evidence.rows = {"public": {7}}


def have_an_urgent_job_wait(story: Story) -> None:
    story.time = 160
    story.defer(7, priority=URGENT)
    story.time = 165
    story.claim(7)
    story.time = 165.5
    story.write(7, "begin", "end")
    story.settle(7)


def hoard(story: Story) -> None:
    story.time = 160
    story.defer(7)
    story.claim(7)
    story.time = 165.51
    story.write(7, "begin", "end")
    story.settle(7)


def hoard_and_give_back(story: Story) -> None:
    story.time = 160
    story.defer(7)
    story.claim(7)
    story.time = 165.51
    story.release(7)
    story.claim(7)
    story.settle(7)


def never_replace(story: Story) -> None:
    story.fault("worker frozen", began=150, ended=165, overdue=["a worker that was paused was not replaced"])
