"""The horizontal axis of a chart: a stretch of time in equal buckets, with marks at round local times. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise


@dataclass(frozen=True)
class TimeAxis:
    """`buckets` stretches of `width` seconds each, from `start` on, in seconds since the epoch."""

    start: int
    width: int
    buckets: int

    @classmethod
    def up_to(cls, now: float, *, width: int, buckets: int) -> "TimeAxis":
        """The axis of which the last bucket contains `now`, and of which every bucket starts at a multiple of it."""
        end = (int(now // width) + 1) * width
        return cls(end - width * buckets, width, buckets)

    @property
    def end(self) -> int:
        return self.start + self.width * self.buckets

    def place(self, seconds: float) -> int | None:
        """The number of the bucket of this time; `None` if it lies outside."""
        place = int((seconds - self.start) // self.width)
        return place if 0 <= place < self.buckets else None

    def times(self, zone: tzinfo) -> list[tuple[datetime, datetime]]:
        limits = range(self.start, self.end + 1, self.width)
        return list(pairwise(datetime.fromtimestamp(seconds, zone) for seconds in limits))

    def marks(self, step: timedelta, zone: tzinfo) -> Iterator[tuple[float, datetime]]:
        """The round local times, multiples of `step` from midnight on: each with its share of the axis."""
        moment = datetime.fromtimestamp(self.start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        while (seconds := moment.timestamp()) < self.end:
            if seconds >= self.start:
                yield (seconds - self.start) / (self.end - self.start), moment
            moment += step  # by the clock on the wall: a day has 23 to 25 hours
