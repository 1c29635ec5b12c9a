"""Keep the number of series within bounds, whatever the names in the rows are. Pure."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

MOST = 200
"""Queues, and pairs of a queue and a task, that have series of their own."""

OTHER = "(other)"
"""The label of all others together."""

T = TypeVar("T")


def bounded(ordered: Iterable[tuple[tuple[str, ...], T]]) -> Iterator[tuple[tuple[str, ...], T]]:
    """The labels with their values; from the `MOST`th on, all have the label `OTHER`."""
    for number, (labels, value) in enumerate(ordered):
        yield (labels if number < MOST else (OTHER,) * len(labels)), value
