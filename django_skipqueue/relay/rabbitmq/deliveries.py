"""The deliveries of one channel that are not acknowledged.

Invariant: a delivery is acknowledged after the relay has said so for each of its parts, and once.
"""

from collections import deque
from collections.abc import Collection


class Deliveries:
    """The broker numbers the deliveries of a channel in ascending order."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._done: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, int] = {}  # still to be acknowledged, of deliveries that have several left
        self.size = 0
        """Bytes of those that are not acknowledged."""

    def add(self, tag: int, size: int = 0, *, parts: int = 1) -> None:
        """Note a delivery of `size` bytes, which holds `parts` outcomes."""
        self._open.append(tag)
        self._sizes[tag] = size
        self.size += size
        if parts > 1:
            self._parts[tag] = parts

    def acknowledge(self, tags: Collection[int]) -> list[tuple[int, bool]]:
        """Note these as acknowledged. Returns the numbers to acknowledge, and whether each stands for all before it.

        A delivery of several parts is given as often. Unknown numbers are of an earlier connection, and are left out:
        their messages come again under other numbers.
        """
        done = self._done
        whole = [tag for tag in tags if self._is_whole(tag)]
        done.update(whole)
        self.size -= sum([self._sizes.pop(tag, 0) for tag in whole])
        last = 0
        while self._open and self._open[0] in done:
            last = self._open.popleft()
            done.remove(last)
        multiple = [(last, True)] if last else []
        single = done.intersection(self._open)
        done.clear()
        if single:
            self._open = deque(tag for tag in self._open if tag not in single)
        return [*multiple, *((tag, False) for tag in sorted(single))]

    def _is_whole(self, tag: int) -> bool:
        """Note that a part is acknowledged. Returns whether it was the last."""
        left = self._parts.get(tag, 1) - 1
        if left > 0:
            self._parts[tag] = left
        else:
            self._parts.pop(tag, None)
        return left <= 0
