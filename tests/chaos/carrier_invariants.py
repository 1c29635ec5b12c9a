"""The invariants of the scenario in which a carrier (Celery) runs the jobs: most common invariants, and some more.

Each function reads the evidence, and yields the violations as sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from django_skipqueue.contrib.celery.carrier import carrier_id

from .carried import CARRIER, REDELIVERING, WINDOW
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
"""The largest number of jobs that the carrier may hold.

Each relay counts these jobs by itself, so two relays may use the same free share of the window.
"""

LARGEST_SHARE_RUN_TWICE = 0.01
"""The largest share of the jobs that may run twice."""

SPEED_LIMIT = 30.0
"""Seconds at most from the last fault to full speed: clients of the broker pause ever longer before they reconnect."""

WAIT_LIMIT = 15.0
"""Seconds at most until an urgent job starts after its enqueue, or any job after its claim: Celery has a long queue."""

DEATHS = 3
"""The number of deliveries whose worker dies, after which the broker gives the job back."""


def nothing_is_left_over(evidence: Evidence) -> Iterator[str]:
    """At the end, the carrier holds no job according to the job table, and the broker has no message."""
    for queue, count in sorted(evidence.messages_left.items()):
        if count:
            yield f"{count} messages were left in {queue}"
    if evidence.carried_counts and evidence.carried_counts[-1][1]:
        yield f"{evidence.carried_counts[-1][1]} jobs were left with the carrier"


def window_holds(evidence: Evidence) -> Iterator[str]:
    """The carrier never holds more jobs than MOST_CARRIED."""
    for at, count in evidence.carried_counts:
        if count > MOST_CARRIED:
            seconds = f"{at - evidence.calm_from:.1f}"
            yield f"{seconds} s after the begin the carrier held {count} jobs, more than {MOST_CARRIED}"


def handed_over_once(evidence: Evidence) -> Iterator[str]:
    """Under each lease a job is handed over at most once: by the relay that has claimed it, to the carrier."""
    claimers = {
        (held_lease.claim.job, held_lease.claim.lease): held_lease.claim.holder for held_lease in evidence.held_leases
    }
    counts = Counter((change.job, change.lease) for change in evidence.changes if change.verb == "hand_over")
    for change in evidence.changes:
        if change.verb != "hand_over":
            continue
        lease = (change.job, change.lease)
        if counts[lease] > 1 or change.holder != carrier_id(CARRIER) or claimers.get(lease) != change.holder_before:
            yield f"job {change.job} was handed over from {change.holder_before} to {change.holder}"


def few_run_twice(evidence: Evidence) -> Iterator[str]:
    """At most one job of a hundred runs twice without a retry."""
    count, jobs = len(jobs_run_twice(evidence)), len(evidence.statuses)
    if count > LARGEST_SHARE_RUN_TWICE * jobs:
        yield f"{count} of {jobs} jobs ran twice"


def carried_deaths_are_counted_right(evidence: Evidence) -> Iterator[str]:
    """A job is recovered for deaths of Celery's processes only if enough faults made the broker deliver it again."""
    for held_lease in evidence.held_leases:
        end = held_lease.end
        if end is None or end.verb != "recover" or end.holder_before != carrier_id(CARRIER):
            continue
        count = sum(
            fault.what in REDELIVERING and fault.overlaps(held_lease.claim.at - 1, end.at) for fault in evidence.faults
        )
        if count < DEATHS:
            yield f"job {end.job} was recovered for {DEATHS} deaths of its workers, and there were {count} faults"


def jobs_run_twice(evidence: Evidence) -> set[int]:
    """The jobs that ran more often than their outcomes, retries and cancellations explain.

    A job that the broker has delivered again has begun more than once under one lease. A job that was released or
    recovered has begun again under a later lease.
    """
    counts = Counter((entry.job, entry.lease, entry.what) for entry in evidence.entries)
    jobs_run_twice_so_far = {job for (job, _, what), times in counts.items() if times > 1 and what != "effect"}
    leases_begun: defaultdict[int, set[int]] = defaultdict(set)
    for entry in evidence.entries:
        leases_begun[entry.job].add(entry.lease)
    for held_lease in evidence.held_leases:
        job, lease = held_lease.claim.job, held_lease.claim.lease
        is_taken_away = held_lease.end is not None and held_lease.end.verb in ("release", "recover")
        if is_taken_away and lease in leases_begun[job] and max(leases_begun[job]) > lease:
            jobs_run_twice_so_far.add(job)
    return jobs_run_twice_so_far


def _as_if_all_machines_were_hit(invariant: Invariant, evidence: Evidence) -> Iterator[str]:
    """Check an invariant as if each fault hit all machines: a fault of any machine can delay a job that Celery runs."""
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
    partial(_as_if_all_machines_were_hit, partial(nothing_waits_for_long, limit=WAIT_LIMIT)),
    nothing_is_overdue,
    limits_hold,
    partial(_as_if_all_machines_were_hit, sequences_are_in_order),
    rates_hold,
    fairness_holds,
    batches_call_back_once,
    chains_are_in_order,
)
