"""The ten invariants: each a function from the evidence to the violations found, as sentences.

Invariant: pure, and exact but for `speed_is_back`, which is about time on a machine that others use as well.
"""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from .evidence import FINISHED, POSTGRES, Change, Death, Evidence, Fault, Held, Stop

Invariant = Callable[[Evidence], Iterator[str]]

PROCESS_LIMIT = 2.0
"""Seconds in which the death of a process must be mended."""

MACHINE_LIMIT = 5.0
"""The same for a machine, beyond the lease."""

RECONNECT = 10.0
"""Seconds, at most, after which a supervisor tries again to reach a database that is back."""

SPEED, SPEED_LIMIT = 0.95, 10.0
SPEED_WINDOW = 5.0
"""Seconds over which the speed is taken."""


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """(1) Every committed job is finished in the end, and a job is there if and only if its transaction committed."""
    promised = {promise.job for promise in evidence.promises}
    for job in sorted(promised - evidence.statuses.keys()):
        yield f"job {job} was committed, and has no row"
    for job in sorted(evidence.statuses.keys() - promised):
        yield f"job {job} has a row, and the transaction that deferred it has nothing else"
    for job, status in sorted(evidence.statuses.items()):
        if status not in FINISHED:
            yield f"job {job} is still {status}"


def one_live_lease(evidence: Evidence) -> Iterator[str]:
    """(2) At most one live lease at any instant: every change is a legal one, and no lease comes twice."""
    for job, changes in evidence.by_job.items():
        for change in changes:
            if change.verb == "illegal":
                yield f"job {job} went from {change.before} to {change.after}"
            elif change.verb != "promote" and change.before and change.lease <= (change.lease_before or 0):
                yield f"job {job} kept lease {change.lease} through a {change.verb}"
        for earlier, later in pairwise(changes):
            if (later.before, later.lease_before) != (earlier.after, earlier.lease):
                yield f"job {job} was {earlier.after} under lease {earlier.lease}, then changed from {later.before}"
    claimed = {(held.claim.job, held.claim.lease): held.claim.at for held in evidence.held}
    begun = Counter((entry.job, entry.lease) for entry in evidence.entries if entry.what == "begin")
    for (job, lease), times in sorted(begun.items()):
        if times > 1:
            yield f"job {job} began {times} times under lease {lease}"
        if (job, lease) not in claimed:
            yield f"job {job} began under lease {lease}, which was never given"


def settled_by_its_holder(evidence: Evidence) -> Iterator[str]:
    """(3) Every accepted settle had the current lease: what was written came about under the lease that it ended."""
    for change in evidence.changes:
        if change.verb == "settle" and change.ran_under not in (None, change.lease_before):
            yield (
                f"job {change.job} held lease {change.lease_before}, and an outcome of lease {change.ran_under} "
                "was written"
            )


def atomic_effects_once(evidence: Evidence) -> Iterator[str]:
    """(4) An atomic job's effect is there exactly once if it is completed, and else not at all."""
    effects = Counter(entry.job for entry in evidence.entries if entry.what == "effect")
    for job in sorted(evidence.atomic):
        expected = 1 if evidence.statuses.get(job) == "completed" else 0
        if effects[job] != expected:
            yield f"job {job} is {evidence.statuses.get(job)}, and its effect is there {effects[job]} times"


def repeats_are_explained(evidence: Evidence) -> Iterator[str]:
    """(5) An effect repeats only where a lease was lost, or where its own attempt failed; a log line tells of it."""
    for held in repeats(evidence):
        reason = _unexplained(evidence, held)
        if reason:
            yield f"job {held.claim.job} ran to its end under lease {held.claim.lease} and again: {reason}"


def attempts_are_bounded(evidence: Evidence) -> Iterator[str]:
    """(6) Attempts never exceed `max_attempts`."""
    for change in evidence.changes:
        if change.after is not None and not 0 <= change.attempts <= change.max_attempts:
            yield f"job {change.job} was at attempt {change.attempts} of {change.max_attempts}"


def unique_keys_are_unique(evidence: Evidence) -> Iterator[str]:
    """(7) A unique key is never alive twice."""
    alive: dict[str, int] = {}
    for change in evidence.changes:
        key = change.unique_key
        if key is None:
            continue
        if change.after in FINISHED:
            if alive.get(key) == change.job:
                del alive[key]
        elif alive.setdefault(key, change.job) != change.job:
            yield f"{key!r} was alive as job {alive[key]} and as job {change.job}"


def stops_are_clean(evidence: Evidence) -> Iterator[str]:
    """(8) After SIGTERM a `runworker` ends, leaves no row running, and burned no attempt."""
    for fault, stop in evidence.stops:
        if stop.code is None:
            yield f"{fault.target} did not end"
        elif stop.code != 0 and stop.had_workers:
            yield f"{fault.target} ended with exit code {stop.code}"
        elif not _disturbed(evidence, fault, stop.began, stop.ended):
            yield from _left_behind(evidence, stop)


def speed_is_back(evidence: Evidence) -> Iterator[str]:
    """(9) Within 10 s of the last fault's end jobs are finished at 95 % of the speed at which they come in."""
    seconds = full_speed_after(evidence)
    if seconds is None or seconds > SPEED_LIMIT:
        yield f"{SPEED_LIMIT:g} s after the last fault, jobs were not yet finished as fast as they came in"


def deaths_are_noticed(evidence: Evidence) -> Iterator[str]:
    """(10) What a dead process held is taken back in under 2 s, what a dead machine held in under the lease + 5 s."""
    for fault, death, held, seconds in taken_back(evidence):
        limit = PROCESS_LIMIT if death.alone else evidence.lease + MACHINE_LIMIT
        if seconds is None or seconds > limit + _excused(evidence, fault, death, held):
            after = "never" if seconds is None else f"after {seconds:.1f} s"
            yield f"job {held.claim.job} of a process that died ({fault.what}) was taken back {after}"


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
)


# Figures that the report shows as well


def repeats(evidence: Evidence) -> list[Held]:
    """The runs that reached their end, and whose job ran to its end once more under a later lease."""
    ends: defaultdict[int, set[int]] = defaultdict(set)
    for entry in evidence.entries:
        if entry.what == "end":
            ends[entry.job].add(entry.lease)
    leases = {(held.claim.job, held.claim.lease): held for held in evidence.held}
    return [leases[job, lease] for job, ended in ends.items() for lease in sorted(ended)[:-1] if (job, lease) in leases]


def taken_back(evidence: Evidence) -> Iterator[tuple[Fault, Death, Held, float | None]]:
    """Each lease that a process held when it died, and the seconds until it was ended."""
    for fault, death in evidence.deaths:
        for held in evidence.held_by({death.pid}, death.at):
            yield fault, death, held, held.end.at - death.at if held.end else None


def full_speed_after(evidence: Evidence) -> float | None:
    """The seconds from the last fault's end until jobs are finished as fast as they come in; `None`: never."""
    coming = len(evidence.statuses) / (evidence.load_until - evidence.calm_from)
    finished = sorted(change.at for change in evidence.changes if change.after in FINISHED)
    start = evidence.calm_again
    while start + SPEED_WINDOW <= evidence.load_until:
        in_window = bisect.bisect(finished, start + SPEED_WINDOW) - bisect.bisect(finished, start)
        if in_window >= SPEED * coming * SPEED_WINDOW:
            return start - evidence.calm_again
        start += 0.1
    return None


# Judging


def _unexplained(evidence: Evidence, held: Held) -> str:
    """Why a run must not have been repeated; nothing if it may."""
    end = held.end
    if end is None:
        return "its lease never ended"
    if end.verb == "settle":
        return "" if end.error else f"its outcome was written as {end.after}"
    if end.verb == "cancel":
        return ""
    if end.verb == "recover" and not _log_tells(evidence, end) and not _teller_died(evidence, end):
        return "no log line tells of the recovery"
    if end.verb == "release" and not _log_tells_of_release(evidence, held):
        return "no log line tells that it was given back"
    return ""


def _log_tells(evidence: Evidence, recovery: Change) -> bool:
    name = re.escape(evidence.names.get(recovery.holder_before or "", ""))
    return re.search(rf"job recovered task=\S+ id={recovery.job} attempt=\d+ worker={name}\b", evidence.log) is not None


def _log_tells_of_release(evidence: Evidence, held: Held) -> bool:
    name = re.escape(evidence.names.get(held.claim.holder, ""))
    return re.search(rf"jobs released worker={name} ", evidence.log) is not None


def _teller_died(evidence: Evidence, recovery: Change) -> bool:
    """Whether a supervisor died between the commit of a recovery and the line about it."""
    return any(0 <= death.at - recovery.at <= 2 and not death.alone for _, death in evidence.deaths)


def _left_behind(evidence: Evidence, stop: Stop) -> Iterator[str]:
    """What the processes of a `runworker` did wrong with the jobs that they held when it was told to stop."""
    for held in evidence.held:
        end = held.end
        if evidence.processes.get(held.claim.holder) not in stop.pids or held.claim.at > stop.ended:
            continue
        if end is None or end.at > stop.ended:
            yield f"job {held.claim.job} was left running after SIGTERM"
        elif end.at >= stop.began and _was_charged(end):
            yield f"job {held.claim.job} was charged an attempt for a SIGTERM"


def _was_charged(end: Change) -> bool:
    """Whether a lease that ended without an outcome cost its job the attempt."""
    return end.verb == "recover" or (end.verb == "release" and end.attempts == end.attempts_before)


def _disturbed(evidence: Evidence, own: Fault, began: float, ended: float) -> bool:
    """Whether what a stopping `runworker` needs was broken, or hardly mended: PostgreSQL, or its own machine."""
    others = _others(evidence, own, began - RECONNECT, ended)
    return any(fault.target in (POSTGRES, own.target) and "SIGTERM" not in fault.what for fault in others)


def _excused(evidence: Evidence, own: Fault, death: Death, held: Held) -> float:
    """Seconds that do not count, because nobody could have taken the job back: other faults were under way."""
    others = _others(evidence, own, death.at, held.end.at if held.end else float("inf"))
    # The supervisor of a worker that died alone takes its jobs back; those of a machine, any other machine.
    hindering = [fault for fault in others if not death.alone or fault.target in (POSTGRES, own.target)]
    return max((fault.ended - death.at + RECONNECT for fault in hindering), default=0.0)


def _others(evidence: Evidence, own: Fault, began: float, ended: float) -> list[Fault]:
    """The other faults of this time that keep a machine from working with the database."""
    harmless = ("worker killed", "clock off")
    return [
        fault
        for fault in evidence.faults
        if fault is not own and fault.what not in harmless and fault.overlaps(began, ended)
    ]
