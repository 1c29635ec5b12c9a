"""What is counted for one task in one queue, within one minute. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...values.counting import added, empty


@dataclass(slots=True)
class Counts:
    """Counts of attempts by outcome, of claims, and histograms of their durations. `RollUp` has the same columns."""

    completed: int = 0
    retried: int = 0
    snoozed: int = 0
    failed: int = 0
    discarded: int = 0
    recovered: int = 0
    lost: int = 0
    waited: list[int] = field(default_factory=empty)
    ran: list[int] = field(default_factory=empty)
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0
    claims: int = 0
    claim_times: list[int] = field(default_factory=empty)
    claim_seconds: float = 0.0

    def add(self, other: "Counts") -> None:
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, added(mine, theirs) if isinstance(mine, list) else mine + theirs)

    def columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


Key = tuple[int, str, str]
"""A minute since the epoch, a queue and a task."""

SPANS = 0, 60, 3600
"""The lengths in seconds of the times that a row covers; 0: since the beginning."""


def start_of(span: int, minute: int) -> int:
    """The start of the span in which a minute lies, in seconds since the epoch."""
    return minute * 60 // span * span if span else 0


def rows(counted: Mapping[Key, Counts]) -> Iterator[dict[str, Any]]:
    """A row for each span and level: the task in its queue, all tasks of the queue, and all queues."""
    total: dict[tuple[int, str, str, int], Counts] = {}
    for (minute, queue_name, task), counts in counted.items():
        for span in SPANS:
            for level in {(queue_name, task), (queue_name, ""), ("", "")}:
                total.setdefault((span, *level, start_of(span, minute)), Counts()).add(counts)
    for (span, queue_name, task, starts_at), counts in total.items():
        yield {"span": span, "queue_name": queue_name, "task": task, "starts_at": starts_at, **counts.columns()}
