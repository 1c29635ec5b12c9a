"""What must hold where a carrier runs the jobs: most of the twenty-one invariants, and some of its own.

Invariant: pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from django_skipqueue.contrib.celery.carrier import carrier_id

from .carried import CARRIER, DELIVER_AGAIN, WINDOW
from .evidence import POSTGRES, Evidence
from .invariants import (
    Invariant,
    atomic_effects_once,
    attempts_are_bounded,
    changes_are_legal,
    deaths_are_noticed,
    live_workers_keep_their_jobs,
    nothing_is_lost,
    nothing_is_overdue,
    nothing_waits_for_long,
    rows_are_in_their_place,
    settled_by_its_holder,
    speed_is_back,
    stops_are_clean,
    unique_keys_are_unique,
)
from .policies import (
    batches_call_back_once,
    chains_are_in_order,
    fairness_holds,
    limits_hold,
    rates_hold,
    sequences_are_in_order,
)

RELAYS = 2

MOST_CARRIED = WINDOW + WINDOW * (RELAYS - 1) // RELAYS
"""The window, and the shares of it that other relays may still use after one has counted again."""

MOST_TWICE = 0.01
"""The share of the jobs that may run twice."""

SPEED_LIMIT = 30.0
"""Seconds, at most, from the last fault to full speed: connections to a broker are tried again less and less often."""

WAIT_LIMIT = 15.0
"""Seconds, at most, from an urgent job's enqueue, or any job's claim, to its begin: a window of jobs is before it."""

DEATHS = 3
"""So often the broker delivers a job, and its worker dies, before it gives the job back."""


def nothing_is_left_over(evidence: Evidence) -> Iterator[str]:
    """When all is done, the carrier holds no job by any row, and the broker no message."""
    for queue, count in sorted(evidence.left_over.items()):
        if count:
            yield f"{count} messages were left in {queue}"
    if evidence.carried and evidence.carried[-1][1]:
        yield f"{evidence.carried[-1][1]} jobs were left with the carrier"


def window_holds(evidence: Evidence) -> Iterator[str]:
    """At each look the carrier held its window at most, and what relays had found free before others filled it."""
    for at, count in evidence.carried:
        if count > MOST_CARRIED:
            after = f"{at - evidence.calm_from:.1f} s after the begin"
            yield f"{after} the carrier held {count} jobs, more than {MOST_CARRIED}"


def handed_over_once(evidence: Evidence) -> Iterator[str]:
    """Under each lease a job is handed over once at most: from the relay that has claimed it to the carrier."""
    held = {(each.claim.job, each.claim.lease): each.claim.holder for each in evidence.held}
    counts = Counter((change.job, change.lease) for change in evidence.changes if change.verb == "hand_over")
    for change in evidence.changes:
        if change.verb != "hand_over":
            continue
        place = (change.job, change.lease)
        if counts[place] > 1 or change.holder != carrier_id(CARRIER) or held.get(place) != change.holder_before:
            yield f"job {change.job} was handed over from {change.holder_before} to {change.holder}"


def few_run_twice(evidence: Evidence) -> Iterator[str]:
    """At most one job of a hundred runs twice without a reason of its own."""
    count, jobs = len(twice(evidence)), len(evidence.statuses)
    if count > MOST_TWICE * jobs:
        yield f"{count} of {jobs} jobs ran twice"


def carried_deaths_are_counted_right(evidence: Evidence) -> Iterator[str]:
    """A lease ends for the deaths of Celery's processes only if the broker had reasons to deliver the job so often."""
    for held in evidence.held:
        end = held.end
        if end is None or end.verb != "recover" or end.holder_before != carrier_id(CARRIER):
            continue
        count = sum(
            fault.what in DELIVER_AGAIN and fault.overlaps(held.claim.at - 1, end.at) for fault in evidence.faults
        )
        if count < DEATHS:
            yield f"job {end.job} was recovered for {DEATHS} deaths of its workers, and there were {count} faults"


def twice(evidence: Evidence) -> set[int]:
    """The jobs that ran once more than their outcomes, retries and cancels account for.

    A job that the broker has delivered again has begun more than once under one lease. One that was released or
    recovered had begun, and has begun again under a later lease.
    """
    counts = Counter((entry.job, entry.lease, entry.what) for entry in evidence.entries)
    found = {job for (job, _, what), times in counts.items() if times > 1 and what != "effect"}
    begun: defaultdict[int, set[int]] = defaultdict(set)
    for entry in evidence.entries:
        begun[entry.job].add(entry.lease)
    for held in evidence.held:
        job, lease = held.claim.job, held.claim.lease
        is_taken_away = held.end is not None and held.end.verb in ("release", "recover")
        if is_taken_away and lease in begun[job] and max(begun[job]) > lease:
            found.add(job)
    return found


def _everywhere(invariant: Invariant, evidence: Evidence) -> Iterator[str]:
    """Ask an invariant as if each fault hit all machines: whatever is between the two ends of a job breaks it."""
    faults = [replace(fault, target=POSTGRES) for fault in evidence.faults]
    return invariant(replace(evidence, faults=faults))


INVARIANTS: tuple[Invariant, ...] = (
    nothing_is_lost,
    nothing_is_left_over,
    changes_are_legal,
    handed_over_once,
    window_holds,
    few_run_twice,
    settled_by_its_holder,
    atomic_effects_once,
    attempts_are_bounded,
    unique_keys_are_unique,
    stops_are_clean,
    partial(speed_is_back, limit=SPEED_LIMIT),
    deaths_are_noticed,
    live_workers_keep_their_jobs,
    carried_deaths_are_counted_right,
    rows_are_in_their_place,
    partial(_everywhere, partial(nothing_waits_for_long, limit=WAIT_LIMIT)),
    nothing_is_overdue,
    limits_hold,
    partial(_everywhere, sequences_are_in_order),
    rates_hold,
    fairness_holds,
    batches_call_back_once,
    chains_are_in_order,
)
