"""Measures for how long observed values have stayed the same, by the monotonic clock of the observing process.

Invariant: no other clock counts, nor does a gap between two observations. So neither a clock that jumps nor a process
that slept makes a value look old.
"""

from collections.abc import Hashable, Mapping


class Unchanged:
    """For each name, its last value and since when it has been the same. Times are monotonic seconds."""

    def __init__(self, *, longest_gap: float) -> None:
        """After a gap of more than `longest_gap` seconds between two looks, everything is forgotten."""
        self._longest_gap = longest_gap
        self._began = self._ended = float("-inf")
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[str, Hashable], began: float, ended: float) -> bool:
        """Note the values, read at some time from `began` to `ended`. A missing name is forgotten.

        Returns False if the gap was too long, and measuring starts again.
        """
        goes_on = ended - self._ended <= self._longest_gap
        before = self._seen if goes_on else {}
        self._began, self._ended = began, ended
        self._seen = {
            name: before[name] if name in before and before[name][0] == value else (value, ended)
            for name, value in values.items()
        }
        return goes_on

    def seconds(self, name: str) -> float:
        """For how long this value had been unchanged at the last look, at least."""
        return max(0.0, self._began - self._seen[name][1])
