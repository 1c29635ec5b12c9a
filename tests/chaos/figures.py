"""The figures of a run: repeated runs, times until jobs were recovered, and the speed after the last fault.

Invariant: each function is pure. All times are seconds.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .evidence import FINISHED, Death, Evidence, Fault, HeldLease

FULL_SPEED = 0.95
"""The share of the speed before the first fault that counts as full speed."""

WINDOW = 1.0
"""Seconds over which the speed is measured."""


def repeats(evidence: Evidence) -> list[HeldLease]:
    """The leases under which a task ran to its end although its job ran to its end again under a later lease."""
    ended_leases: defaultdict[int, set[int]] = defaultdict(set)
    for entry in evidence.entries:
        if entry.what == "end":
            ended_leases[entry.job].add(entry.lease)
    lease_by_key = {(held_lease.claim.job, held_lease.claim.lease): held_lease for held_lease in evidence.held_leases}
    return [
        lease_by_key[job, lease]
        for job, leases_with_end in ended_leases.items()
        for lease in sorted(leases_with_end)[:-1]
        if (job, lease) in lease_by_key
    ]


def taken_back(evidence: Evidence) -> Iterator[tuple[Fault, Death, HeldLease, float | None]]:
    """Each lease that a process held when it died, and the seconds until the lease was ended."""
    for fault, death in evidence.deaths:
        for held_lease in evidence.held_by({death.pid}, death.at):
            yield fault, death, held_lease, held_lease.end.at - death.at if held_lease.end else None


def calm_speed(evidence: Evidence) -> float:
    """The jobs finished a second before the first fault, but at most those that the load defers.

    While the load catches up after a delay, more jobs are finished than later.
    """
    finish_times = _times_of_finished_jobs(evidence)
    count = bisect.bisect(finish_times, evidence.broken_from) - bisect.bisect(finish_times, evidence.calm_from)
    return min(count / (evidence.broken_from - evidence.calm_from), evidence.rate)


def longest_gap(evidence: Evidence) -> float:
    """The longest time without a finished job, from the end of the last fault to the end of the load."""
    finish_times = _times_of_finished_jobs(evidence)
    first, last = bisect.bisect(finish_times, evidence.calm_again), bisect.bisect(finish_times, evidence.load_until)
    moments = [evidence.calm_again, *finish_times[first:last], evidence.load_until]
    return max(later - earlier for earlier, later in pairwise(moments))


def full_speed_after(evidence: Evidence) -> float | None:
    """The time from the end of the last fault to the first second at full speed; `None` if there is none."""
    finish_times = _times_of_finished_jobs(evidence)
    jobs_at_full_speed = FULL_SPEED * calm_speed(evidence) * WINDOW
    first = evidence.calm_again + WINDOW
    times_of_ends = finish_times[bisect.bisect(finish_times, first) : bisect.bisect(finish_times, evidence.load_until)]
    for end in (first, *times_of_ends):  # only seconds that end with a finished job: no other second has more jobs
        if bisect.bisect(finish_times, end) - bisect.bisect(finish_times, end - WINDOW) >= jobs_at_full_speed:
            return end - first
    return None


def _times_of_finished_jobs(evidence: Evidence) -> list[float]:
    return sorted(change.at for change in evidence.changes if change.after in FINISHED)
