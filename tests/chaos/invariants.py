"""The twenty-four invariants: each is a function that yields the violations in the evidence, as sentences.

Invariant: each function is pure, and exact except `speed_is_back`, which depends on the load of the computer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from .evidence import FINISHED, Change, Evidence, Life, Stop
from .figures import full_speed_after, longest_gap, repeats, taken_back
from .policies import (
    batches_call_back_once,
    chains_are_in_order,
    fairness_holds,
    limits_hold,
    rates_hold,
    sequences_are_in_order,
)
from .reasons import RECONNECT, Reason, excuse, hindrance, reason_of_repeat, was_silenced
from .step_invariants import signals_arrive, steps_are_in_order, steps_happen_once

Invariant = Callable[[Evidence], Iterator[str]]

PROCESS_LIMIT = 2.0
"""Seconds within which the jobs of a dead process must be recovered."""

MACHINE_LIMIT = 5.0
"""Seconds within which the jobs of a dead machine must be recovered, after the worker timeout."""

FROZEN_LIMIT = 40.0
"""Seconds within which the jobs of a process that hangs must be recovered."""

SPEED_LIMIT = 10.0
"""Seconds at most from the last fault to full speed, and at most without a finished job."""

WAIT_LIMIT = 5.0
"""Seconds at most from the enqueue of an urgent job, or from the claim of any job, to its start."""

CHANGES_KEEPING_THE_LEASE = ("enqueue", "admit", "put_back", "prune", "hand_over", "reset_attempts")
"""The kinds of changes that do not increase the lease."""

CENSUS_DELAY = 0.2
"""Seconds by which the recorded end of a process may be too late: the census does not look all the time."""


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """(1) Every committed job is finished in the end, and a job is there if and only if its transaction committed."""
    called_back = {change.job for change in evidence.changes if change.calls_back is not None}
    expected_jobs = {promise.job for promise in evidence.promises} | called_back | evidence.children
    for job in sorted(expected_jobs - evidence.statuses.keys()):
        yield f"job {job} was committed, and has no row"
    for job in sorted(evidence.statuses.keys() - expected_jobs):
        yield f"job {job} has a row, and the transaction that deferred it has nothing else"
    for job, status in sorted(evidence.statuses.items()):
        if status not in FINISHED:
            yield f"job {job} is still {status}"


def one_live_lease(evidence: Evidence) -> Iterator[str]:
    """(2) A job has at most one live lease at any instant: every change is legal, and no lease comes twice."""
    yield from changes_are_legal(evidence)
    begin_counts = Counter((entry.job, entry.lease) for entry in evidence.entries if entry.what == "begin")
    for (job, lease), times in sorted(begin_counts.items()):
        if times > 1:
            yield f"job {job} began {times} times under lease {lease}"


def changes_are_legal(evidence: Evidence) -> Iterator[str]:
    """The part of invariant (2) that holds with Celery as well, although its broker may deliver a job twice."""
    for job, changes in evidence.by_job.items():
        for change in changes:
            if change.verb == "illegal":
                yield f"job {job} went from {change.before} to {change.after}"
            elif change.verb == "take_over" and not _may_take_over(evidence, change):
                yield f"job {job} was running, and {_name(evidence, change.holder)} took it over"
            elif change.verb not in CHANGES_KEEPING_THE_LEASE and change.lease <= (change.lease_before or 0):
                yield f"job {job} kept lease {change.lease} through a {change.verb}"
        for earlier, later in pairwise(changes):
            if (later.before, later.lease_before) != (earlier.after, earlier.lease):
                yield f"job {job} was {earlier.after} under lease {earlier.lease}, then changed from {later.before}"
    claim_times = {
        (held_lease.claim.job, held_lease.claim.lease): held_lease.claim.at for held_lease in evidence.held_leases
    }
    for job, lease in sorted({(entry.job, entry.lease) for entry in evidence.entries if entry.what == "begin"}):
        if (job, lease) not in claim_times:
            yield f"job {job} began under lease {lease}, which was never given"


def settled_by_its_holder(evidence: Evidence) -> Iterator[str]:
    """(3) Every accepted settle had the current lease: the written outcome is from the attempt under this lease."""
    for change in evidence.changes:
        if change.verb == "settle" and change.ran_under not in (None, change.lease_before):
            yield (
                f"job {change.job} held lease {change.lease_before}, and an outcome of lease {change.ran_under} "
                "was written"
            )


def atomic_effects_once(evidence: Evidence) -> Iterator[str]:
    """(4) An atomic job's effect exists exactly once if the job is completed, and otherwise not at all."""
    effects = Counter(entry.job for entry in evidence.entries if entry.what == "effect")
    for job in sorted(evidence.atomic):
        expected = 1 if evidence.statuses.get(job) == "completed" else 0
        if effects[job] != expected:
            yield f"job {job} is {evidence.statuses.get(job)}, and its effect is there {effects[job]} times"


def repeats_are_explained(evidence: Evidence) -> Iterator[str]:
    """(5) An effect repeats only if a lease was lost or its attempt failed; a log line or the job's row says why."""
    for held_lease in repeats(evidence):
        reason = reason_of_repeat(evidence, held_lease)
        if not isinstance(reason, Reason):
            yield f"job {held_lease.claim.job} ran to its end under lease {held_lease.claim.lease} and again: {reason}"


def attempts_are_bounded(evidence: Evidence) -> Iterator[str]:
    """(6) Attempts never exceed `max_attempts`."""
    for change in evidence.changes:
        if change.after is not None and not 0 <= change.attempts <= change.max_attempts:
            yield f"job {change.job} was at attempt {change.attempts} of {change.max_attempts}"


def unique_keys_are_unique(evidence: Evidence) -> Iterator[str]:
    """(7) Two jobs that are not finished never have the same unique key."""
    unfinished_job_by_key: dict[str, int] = {}
    for change in evidence.changes:
        key = change.unique_key
        if key is None:
            continue
        if change.after is None or change.after in FINISHED:
            if unfinished_job_by_key.get(key) == change.job:
                del unfinished_job_by_key[key]
        elif unfinished_job_by_key.setdefault(key, change.job) != change.job:
            yield f"{key!r} was alive as job {unfinished_job_by_key[key]} and as job {change.job}"


def stops_are_clean(evidence: Evidence) -> Iterator[str]:
    """(8) After SIGTERM a `runworker` ends, leaves no job running, and charges no job an attempt."""
    for fault, stop in evidence.stops:
        if stop.code is None:
            yield f"{fault.target} did not end"
        elif stop.code != 0 and stop.had_workers:
            yield f"{fault.target} ended with exit code {stop.code}"
        elif not hindrance(evidence, stop.began - RECONNECT, stop.ended, fault.target, own=fault):
            yield from _faulty_stops(evidence, stop)


def speed_is_back(evidence: Evidence, *, limit: float = SPEED_LIMIT) -> Iterator[str]:
    """(9) Within 10 s of the last fault's end jobs are finished as fast as before; no pause is longer than 10 s."""
    seconds, gap = full_speed_after(evidence), longest_gap(evidence)
    if seconds is None or seconds > limit:
        yield f"{limit:g} s after the last fault, jobs were not yet finished as fast as before the first"
    if gap > limit:
        yield f"after the last fault no job was finished for {gap:.1f} s"


def deaths_are_noticed(evidence: Evidence) -> Iterator[str]:
    """(10) Jobs are recovered in time.

    The limit is 2 s for a dead process, 40 s for a frozen process, and the worker timeout and 5 s for a dead machine.
    """
    for fault, death, held_lease, seconds in taken_back(evidence):
        limit = (
            FROZEN_LIMIT if death.frozen else PROCESS_LIMIT if death.alone else evidence.worker_timeout + MACHINE_LIMIT
        )
        if seconds is None or seconds > limit + excuse(evidence, fault, death, held_lease):
            after = "never" if seconds is None else f"after {seconds:.1f} s"
            yield f"job {held_lease.claim.job} of a process that died ({fault.what}) was taken back {after}"


def live_workers_keep_their_jobs(evidence: Evidence) -> Iterator[str]:
    """(11) No job is recovered from a worker that lives and sends heartbeats, and no such worker ends by itself."""
    for change in evidence.changes:
        life = evidence.lives.get(evidence.processes.get(change.holder_before or "", 0))
        was_alive_later = life is not None and life.last_seen > change.at + CENSUS_DELAY
        if change.verb == "recover" and was_alive_later and not was_silenced(evidence, change.holder_before, change.at):
            yield f"job {change.job} was taken from {_name(evidence, change.holder_before)}, which was alive"
    killed_or_stopped = {death.pid for _, death in evidence.deaths} | {
        pid for _, stop in evidence.stops for pid in stop.pids
    }
    for pid, life in evidence.lives.items():
        is_explained = _is_alone(evidence, pid) or _had_trouble(evidence, life) or _was_recycled(evidence, pid)
        if life.is_over and pid not in killed_or_stopped and not is_explained:
            yield f"a worker of {life.machine} ended, and nothing was done to it"


def deaths_are_counted_right(evidence: Evidence) -> Iterator[str]:
    """(12) A job that has attempts left fails for the deaths of its workers only if three processes really ended."""
    for job, changes in evidence.by_job.items():
        recoveries = [change for change in changes if change.verb == "recover"]
        if recoveries and recoveries[-1].after == "failed" and recoveries[-1].attempts < recoveries[-1].max_attempts:
            holders = {change.holder_before for change in recoveries}
            holders_that_ended = [holder for holder in holders if _is_over(evidence, holder)]
            if len(holders_that_ended) < 3:
                yield f"job {job} failed for the deaths of its workers, and {len(holders_that_ended)} of them died"


def rows_are_in_their_place(evidence: Evidence) -> Iterator[str]:
    """(13) The row that a completed job wrote is in the schema of its connection, and no other schema has such rows."""
    rows = evidence.rows.get("chaos_tenant", set())
    for job in sorted(evidence.row_writers):
        if evidence.statuses.get(job) == "completed" and job not in rows:
            yield f"job {job} is completed, and its row is not there"
    for job in sorted(evidence.rows.get("public", set())):
        yield f"job {job} wrote into the wrong schema"


def nothing_waits_for_long(evidence: Evidence, *, limit: float = WAIT_LIMIT) -> Iterator[str]:
    """(14) An urgent job begins within 5 s of its enqueue; any job begins, or is released, within 5 s of its claim."""
    for job in sorted(evidence.urgent):
        changes = evidence.by_job[job]
        begun_at = [at for change in changes if (at := evidence.first_entry.get((job, change.lease)))]
        if begun_at and _waited(evidence, limit, changes[0].at, min(begun_at), changes):
            yield f"job {job} was urgent, and began after {min(begun_at) - changes[0].at:.1f} s"
    for held_lease in evidence.held_leases:
        began_or_released_at = evidence.first_entry.get((held_lease.claim.job, held_lease.claim.lease))
        if began_or_released_at is None and held_lease.end is not None and held_lease.end.verb == "release":
            began_or_released_at = held_lease.end.at
        if began_or_released_at is not None and _waited(
            evidence, limit, held_lease.claim.at, began_or_released_at, [held_lease.claim]
        ):
            name, seconds = _name(evidence, held_lease.claim.holder), began_or_released_at - held_lease.claim.at
            yield f"job {held_lease.claim.job} was claimed by {name}, and waited there for {seconds:.1f} s"


def nothing_is_overdue(evidence: Evidence) -> Iterator[str]:
    """(15) Everything that must happen after a fault, such as the replacement of a frozen worker, happens in time."""
    for fault in evidence.faults:
        yield from fault.overdue


INVARIANTS: tuple[Invariant, ...] = (
    nothing_is_lost,
    one_live_lease,
    settled_by_its_holder,
    atomic_effects_once,
    repeats_are_explained,
    attempts_are_bounded,
    unique_keys_are_unique,
    stops_are_clean,
    speed_is_back,
    deaths_are_noticed,
    live_workers_keep_their_jobs,
    deaths_are_counted_right,
    rows_are_in_their_place,
    nothing_waits_for_long,
    nothing_is_overdue,
    limits_hold,
    sequences_are_in_order,
    rates_hold,
    fairness_holds,
    batches_call_back_once,
    chains_are_in_order,
    steps_happen_once,
    steps_are_in_order,
    signals_arrive,
)


# Judging


def _faulty_stops(evidence: Evidence, stop: Stop) -> Iterator[str]:
    """The jobs that a `runworker` left running, or charged an attempt, after it got SIGTERM."""
    for held_lease in evidence.held_leases:
        end = held_lease.end
        if evidence.processes.get(held_lease.claim.holder) not in stop.pids or held_lease.claim.at > stop.ended:
            continue
        if (held_lease.claim.job, held_lease.claim.lease) in evidence.handed_over:
            continue
        if end is None or end.at > stop.ended:
            yield f"job {held_lease.claim.job} was left running after SIGTERM"
        elif end.at >= stop.began and _was_charged(end):
            yield f"job {held_lease.claim.job} was charged an attempt for a SIGTERM"


def _was_charged(end: Change) -> bool:
    """Whether a lease that ended without an outcome cost its job the attempt."""
    return end.verb == "recover" or (end.verb == "release" and end.attempts == end.attempts_before)


def _had_trouble(evidence: Evidence, life: Life) -> bool:
    """Whether a fault may explain that a worker ended: an attempt may have hung in a connection."""
    return hindrance(evidence, life.last_seen - 30, life.last_seen, life.machine) > 0


def _is_alone(evidence: Evidence, pid: int) -> bool:
    """Whether the process was started to run a single job, of which two workers had died. It ends with the job."""
    return any(
        evidence.names[holder].endswith("/alone")
        for holder, pid_of_holder in evidence.processes.items()
        if pid_of_holder == pid
    )


def _may_take_over(evidence: Evidence, change: Change) -> bool:
    """Whether a process that runs one job alone may take the job: two workers died of it, and it has not begun."""
    pid = evidence.processes.get(change.holder or "", 0)
    same_machine = evidence.machine_of(change.holder) == evidence.machine_of(change.holder_before)
    earlier_changes = [earlier for earlier in evidence.by_job[change.job] if earlier.seq < change.seq]
    deaths = sum(earlier.verb == "recover" for earlier in earlier_changes)
    has_begun = (change.job, change.lease_before) in evidence.first_entry
    return _is_alone(evidence, pid) and same_machine and deaths >= 2 and not has_begun


def _was_recycled(evidence: Evidence, pid: int) -> bool:
    """Whether a log line says that the process was replaced, as after the interruption of an attempt."""
    names = {evidence.names[holder] for holder, pid_of_holder in evidence.processes.items() if pid_of_holder == pid}
    lines = [line.text for line in evidence.log if line.at >= evidence.lives[pid].first_seen]
    return any(f"worker recycled worker={name} " in line for line in lines for name in names)


def _is_over(evidence: Evidence, holder: str | None) -> bool:
    life = evidence.lives.get(evidence.processes.get(holder or "", 0))
    return life is not None and life.is_over


def _waited(evidence: Evidence, limit: float, began: float, ended: float, changes: list[Change]) -> bool:
    """Whether the time is longer than the limit, and no fault hit the machines that made the changes."""
    if ended - began <= limit:
        return False
    machines = {evidence.machine_of(change.holder) for change in changes if change.holder}
    return not any(hindrance(evidence, began - RECONNECT, ended, machine) for machine in machines or {""})


def _name(evidence: Evidence, holder: str | None) -> str:
    return evidence.names.get(holder or "", "a worker that nobody knows")
