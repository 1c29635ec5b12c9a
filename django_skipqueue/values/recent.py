"""A count of what has happened recently."""

from collections import deque


class Recent:
    def __init__(self, span: float) -> None:
        self._span = span
        self._added: deque[tuple[float, int]] = deque()
        self._count = 0

    def add(self, count: int, now: float) -> None:
        self._added.append((now, count))
        self._count += count

    def count(self, now: float) -> int:
        """Number of events within the span before `now`. Forgets older ones."""
        while self._added and self._added[0][0] < now - self._span:
            self._count -= self._added.popleft()[1]
        return self._count
