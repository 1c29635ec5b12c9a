"""The invariants of steps, loops and signals: of jobs that go on where they stopped.

Invariant: each function is pure and exact. `jobs.go_on` is the task; `STEPS` and `EFFECTS` say what one of its jobs
does.
"""

from collections import Counter
from collections.abc import Iterator

from .evidence import Evidence

STEPS = ("account", "nap", "children", "go", "items", "rest", "last")
"""The names of the steps of a job of `jobs.go_on`, in their order."""

ITEMS = 3
"""The items of each of the job's two loops."""

EFFECTS = ("step account", *(f"step item {number}" for number in range(ITEMS)), "step last")
"""What a job writes in the transaction of an atomic step or item, in this order."""


def steps_happen_once(evidence: Evidence) -> Iterator[str]:
    """(22) An atomic step or item has its effect at most once, and exactly once if its job is completed."""
    for job in sorted(evidence.with_steps):
        effect_counts = Counter(entry.what for entry in evidence.entries_of.get(job, ()))
        least_count = 1 if evidence.statuses.get(job) == "completed" else 0
        for effect in EFFECTS:
            if not least_count <= effect_counts[effect] <= 1:
                yield f"job {job} is {evidence.statuses.get(job)}, and did {effect!r} {effect_counts[effect]} times"


def steps_are_in_order(evidence: Evidence) -> Iterator[str]:
    """(23) A completed job has one record of each step, in the order of the task, and did the steps in this order."""
    for job in sorted(evidence.with_steps):
        if evidence.statuses.get(job) != "completed":
            continue
        if (recorded := evidence.recorded.get(job, ())) != STEPS:
            yield f"job {job} is completed, and its recorded steps are {', '.join(recorded) or 'none'}"
        effects = [entry.what for entry in evidence.entries_of.get(job, ()) if entry.what in EFFECTS]
        positions = [EFFECTS.index(effect) for effect in effects]
        if positions != sorted(positions):
            yield f"job {job} had its effects in the order {', '.join(effects)}"


def signals_arrive(evidence: Evidence) -> Iterator[str]:
    """(24) A job gets a signal at most once, and a completed job has taken exactly the signal that was committed."""
    for job, payloads in sorted(evidence.signals.items()):
        if len(payloads) > 1:
            yield f"job {job} got {len(payloads)} signals of one name"
    for job in sorted(evidence.with_steps):
        if evidence.statuses.get(job) != "completed":
            continue
        taken_payload = evidence.taken.get(job)
        if [taken_payload] != evidence.signals.get(job, []):
            yield f"job {job} took the signal {taken_payload!r}, and {evidence.signals.get(job, [])} was committed"
