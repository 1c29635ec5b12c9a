"""The jobs that were published, and that the broker has neither confirmed nor refused.

Invariant: each published job is settled once. A broker returns a message that it cannot put anywhere, and then confirms
it all the same: such a job is refused.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from ...values.records import LeaseRef
from ...values.times import NEVER


class Unconfirmed:
    """The broker counts the messages of a channel in confirm mode from 1 on, and so does this."""

    def __init__(self) -> None:
        self._refs: dict[int, LeaseRef] = {}  # by number, ascending
        self._batches: deque[tuple[int, float]] = deque()  # the last number of each, and when it was published
        self._published = 0
        self._returned: set[LeaseRef] = set()

    def __len__(self) -> int:
        return len(self._refs)

    @property
    def oldest(self) -> float:
        """When the oldest of them was published, in monotonic seconds."""
        first = next(iter(self._refs), None)
        while self._batches and (first is None or self._batches[0][0] < first):
            self._batches.popleft()
        return self._batches[0][1] if self._batches else NEVER

    def add(self, refs: Sequence[LeaseRef], now: float) -> None:
        first = self._published + 1
        self._published += len(refs)
        self._refs.update(zip(range(first, self._published + 1), refs, strict=True))
        self._batches.append((self._published, now))

    def excuse(self, now: float) -> None:
        """Count all as published now: the broker is blocked, and says so."""
        if self._batches:
            self._batches = deque([(self._published, now)])

    def note_returned(self, ref: LeaseRef) -> None:
        self._returned.add(ref)

    def settle(self, number: int, multiple: bool) -> tuple[list[LeaseRef], list[LeaseRef]]:
        """Remove this message; `multiple`: and all before it. Returns those not returned, and the returned ones."""
        if multiple:
            count = 0
            for each in self._refs:
                if each > number:
                    break
                count += 1
            numbers = list(islice(self._refs, count))
        else:
            numbers = [number]
        settled = [ref for each in numbers if (ref := self._refs.pop(each, None)) is not None]
        if not self._returned:
            return settled, []
        returned = [ref for ref in settled if ref in self._returned]
        self._returned.difference_update(returned)
        return [ref for ref in settled if ref not in returned], returned
