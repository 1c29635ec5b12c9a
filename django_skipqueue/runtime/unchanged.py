"""For how long values have been seen unchanged, by the monotonic clock of the process that looks at them.

Invariant: no other clock counts, and no time in which nobody looked. So neither a clock that jumps nor a process that
slept makes a value look old.
"""

from collections.abc import Hashable, Mapping


class Unchanged:
    """Values by name. Times are monotonic seconds."""

    def __init__(self, *, longest_gap: float) -> None:
        """Between two looks that are further apart than `longest_gap`, nothing counts as seen."""
        self._longest_gap = longest_gap
        self._began = self._ended = float("-inf")
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[str, Hashable], began: float, ended: float) -> bool:
        """Note what the values were at some time from `began` to `ended`; whether the observation goes on.

        It begins anew after a gap. A name that is missing is forgotten.
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
