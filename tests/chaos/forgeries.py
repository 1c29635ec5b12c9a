"""Functions that each add a violation to evidence without violations, mostly by the changes of a new job, NEW_JOB.

Invariant: each function violates one invariant, which `test_invariants` names beside it.
"""

from .evidence import URGENT, Death, Entry, Stop
from .evidence_builder import OTHER_PID, THIRD_PID, EvidenceBuilder

NEW_JOB = 7

# Lost jobs


def delete_the_row_of_a_job(builder: EvidenceBuilder) -> None:
    del builder.evidence.statuses[1]


def leave_a_job_running(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)


def keep_a_job_of_a_rolled_back_transaction(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)
    builder.evidence.promises.pop()


# Leases


def claim_a_running_job(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.change(NEW_JOB, "running", "running", lease=2, attempts=2, holder="third")
    builder.settle(NEW_JOB)


def take_over(builder: EvidenceBuilder, *, deaths: int = 2, claimed_by: str = "third", holder: str = "alone") -> None:
    """Have a process take a job over. With the default values this is legal."""
    builder.defer(NEW_JOB)
    for _ in range(deaths):
        builder.claim(NEW_JOB, "victim")
        builder.recover(NEW_JOB)
    builder.claim(NEW_JOB, claimed_by)
    builder.take_over(NEW_JOB, holder)
    builder.settle(NEW_JOB)


def take_over_after_one_death(builder: EvidenceBuilder) -> None:
    take_over(builder, deaths=1)


def take_over_on_another_machine(builder: EvidenceBuilder) -> None:
    take_over(builder, claimed_by="other")


def take_over_as_an_ordinary_worker(builder: EvidenceBuilder) -> None:
    take_over(builder, claimed_by="victim", holder="other")


def take_over_a_job_that_has_begun(builder: EvidenceBuilder) -> None:
    take_over(builder)
    claim = next(
        change for change in reversed(builder.evidence.changes) if change.verb == "claim" and change.job == NEW_JOB
    )
    builder.evidence.entries.append(Entry(NEW_JOB, claim.lease, "begin", claim.at))


def use_a_lease_twice(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.recover(NEW_JOB)
    builder.change(NEW_JOB, "queued", "running", holder="third")
    builder.settle(NEW_JOB)


def change_a_row_without_a_record(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.change(NEW_JOB, "failed", "queued", lease=1)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def begin_twice_under_one_lease(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.write_entries(NEW_JOB, "begin", "begin")
    builder.settle(NEW_JOB)


def begin_under_no_lease(builder: EvidenceBuilder) -> None:
    builder.evidence.entries.append(Entry(job=1, lease=99, what="begin", at=0.0))


# Settles


def write_the_outcome_of_a_lost_lease(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.recover(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB, ran_under=1)


# Atomic jobs


def have_an_effect_twice(builder: EvidenceBuilder) -> None:
    builder.write_entries(2, "effect")


def have_no_effect(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB, atomic=True)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def have_an_effect_and_fail(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB, atomic=True)
    builder.claim(NEW_JOB)
    builder.write_entries(NEW_JOB, "effect")
    builder.settle(NEW_JOB, "failed", error="ValueError: no")


# Repeats


def run_a_completed_job_again(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.write_entries(NEW_JOB, "end")
    builder.settle(NEW_JOB, "queued")
    builder.claim(NEW_JOB)
    builder.write_entries(NEW_JOB, "end")
    builder.settle(NEW_JOB)


def recover_without_a_log_line(builder: EvidenceBuilder) -> None:
    builder.evidence.log = []


def log_a_recovery_too_late(builder: EvidenceBuilder) -> None:
    builder.evidence.log = [line._replace(at=line.at + 10) for line in builder.evidence.log]


def release_without_a_log_line(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.write_entries(NEW_JOB, "end")
    builder.release(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.write_entries(NEW_JOB, "end")
    builder.settle(NEW_JOB)


# Attempts


def exceed_max_attempts(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.change(NEW_JOB, "queued", "running", lease=1, attempts=4)
    builder.settle(NEW_JOB)


def make_attempts_negative(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB, attempts=-1)


# Unique keys


def hold_a_key_twice(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB, key="the key")
    builder.defer(8, key="the key")
    for job in (NEW_JOB, 8):
        builder.claim(job)
        builder.settle(job)


# SIGTERM


def hang_after_sigterm(builder: EvidenceBuilder) -> None:
    builder.add_fault(
        "SIGTERM", began=150, ended=190, stops=[Stop(frozenset({THIRD_PID}), began=150, ended=190, code=None)]
    )


def end_with_an_error(builder: EvidenceBuilder) -> None:
    builder.add_fault(
        "SIGTERM", began=150, ended=151, stops=[Stop(frozenset({2, THIRD_PID}), began=150, ended=151, code=1)]
    )


def leave_a_job_behind_after_sigterm(builder: EvidenceBuilder) -> None:
    builder.time = 150
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.time = 155
    builder.release(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)
    builder.add_fault(
        "SIGTERM", began=151, ended=152, stops=[Stop(frozenset({THIRD_PID}), began=151, ended=152, code=0)]
    )


def charge_a_job_for_sigterm(builder: EvidenceBuilder) -> None:
    builder.time = 150
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.recover(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)
    builder.add_fault(
        "SIGTERM", began=150.01, ended=152, stops=[Stop(frozenset({THIRD_PID}), began=150.01, ended=152, code=0)]
    )


def release_a_job_after_sigterm_and_charge_it(builder: EvidenceBuilder) -> None:
    builder.time = 150
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.change(NEW_JOB, "running", "queued", lease=2, holder="")
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)
    builder.add_fault(
        "SIGTERM", began=150.01, ended=152, stops=[Stop(frozenset({THIRD_PID}), began=150.01, ended=152, code=0)]
    )


# Speed


def finish_half_of_the_jobs(builder: EvidenceBuilder) -> None:
    late = [change for change in builder.evidence.changes if change.at > 130]
    for change in late[::2]:
        builder.evidence.changes.remove(change)


def finish_no_job_for_11_seconds(builder: EvidenceBuilder) -> None:
    """For 11 seconds no job is finished, and then all at once."""
    for number, change in enumerate(builder.evidence.changes):
        if 130 < change.at < 141:
            builder.evidence.changes[number] = change._replace(at=141)


# Deaths


def recover_after(builder: EvidenceBuilder, *, alone: bool, seconds: float) -> None:
    builder.time = 160
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.add_fault(
        "a death", began=builder.time, ended=builder.time, deaths=[Death(THIRD_PID, builder.time, alone=alone)]
    )
    builder.time += seconds
    builder.recover(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def notice_the_death_of_a_process_late(builder: EvidenceBuilder) -> None:
    recover_after(builder, alone=True, seconds=2.1)


def notice_the_death_of_a_machine_late(builder: EvidenceBuilder) -> None:
    recover_after(builder, alone=False, seconds=9.1)


def never_notice_a_death(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "third")
    builder.add_fault(began=builder.time, ended=builder.time, deaths=[Death(THIRD_PID, builder.time, alone=True)])


def recover_a_job_of_a_live_worker(builder: EvidenceBuilder) -> None:
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB, "other")
    builder.recover(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def end_a_worker_without_a_reason(builder: EvidenceBuilder) -> None:
    builder.time = 200
    builder.end_process(OTHER_PID)


def fail_for_deaths_of_one_worker(builder: EvidenceBuilder, *holders: str) -> None:
    builder.defer(NEW_JOB)
    for holder in holders or ("victim", "victim", "victim"):
        builder.claim(NEW_JOB, holder)
        builder.recover(NEW_JOB)
    builder.evidence.changes[-1] = builder.evidence.changes[-1]._replace(after="failed", max_attempts=50)


def fail_for_deaths_of_a_live_worker(builder: EvidenceBuilder) -> None:
    fail_for_deaths_of_one_worker(builder, "other", "other", "other")


# Rows in a wrong schema, long waits, and missing effects of faults


def complete_without_a_row(builder: EvidenceBuilder) -> None:
    builder.evidence.row_writers.add(NEW_JOB)
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def write_into_another_schema(builder: EvidenceBuilder) -> None:
    builder.evidence.rows = {"public": {NEW_JOB}}


def have_an_urgent_job_wait(builder: EvidenceBuilder) -> None:
    builder.time = 160
    builder.defer(NEW_JOB, priority=URGENT)
    builder.time = 165
    builder.claim(NEW_JOB)
    builder.time = 165.5
    builder.write_entries(NEW_JOB, "begin", "end")
    builder.settle(NEW_JOB)


def begin_long_after_the_claim(builder: EvidenceBuilder) -> None:
    builder.time = 160
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.time = 165.51
    builder.write_entries(NEW_JOB, "begin", "end")
    builder.settle(NEW_JOB)


def release_long_after_the_claim(builder: EvidenceBuilder) -> None:
    builder.time = 160
    builder.defer(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.time = 165.51
    builder.release(NEW_JOB)
    builder.claim(NEW_JOB)
    builder.settle(NEW_JOB)


def never_replace_a_paused_worker(builder: EvidenceBuilder) -> None:
    builder.add_fault("worker frozen", began=150, ended=165, overdue=["a worker that was paused was not replaced"])
