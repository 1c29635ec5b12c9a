"""A cause of failed attempts as the pages show it."""

from dataclasses import dataclass
from datetime import timedelta

from django.utils.formats import date_format
from django.utils.http import urlencode
from django.utils.timezone import localtime

from ...models import Job
from ...operators import causes
from ...operators.counts import grouped
from ...operators.durations import distance
from ...rollups.tally import OTHER
from ...store.failures import FailureCounts
from ...values.cause import Cause
from .trend import DAY_HOURS, Trend

NEW = timedelta(hours=1)
"""The age up to which a cause counts as new: the first thing to look at after a deploy."""


@dataclass(frozen=True)
class ShownCause:
    counts: FailureCounts

    @property
    def task(self) -> str:
        return self.counts.cause.task

    @property
    def exception(self) -> str:
        return self.counts.cause.exception.removeprefix("builtins.")

    @property
    def place(self) -> str:
        """The function that raised it, with the line of the last time: `shop.jobs.send:42`; empty if not known."""
        place, line = self.counts.cause.place, self.counts.last_line
        return f"{place}:{line}" if place and line else place

    @property
    def is_new(self) -> bool:
        """Whether it was seen for the first time within the last hour."""
        return self.counts.now - self.counts.first_at < NEW

    @property
    def is_other(self) -> bool:
        """Whether it stands for the causes that were too many to be counted apart, and so has no jobs of its own."""
        return self.task == OTHER

    @property
    def numbers(self) -> list[str]:
        """The numbers of the last hour, of 24 hours and of 7 days."""
        return [grouped(number) for number in (self.counts.in_hour, self.counts.in_day, self.counts.in_week)]

    @property
    def seen(self) -> list[tuple[str, str, str]]:
        """The first and the last time: how long ago, as an ISO time, and in full."""
        return [
            (distance(moment, self.counts.now), moment.isoformat(), date_format(localtime(moment), "DATETIME_FORMAT"))
            for moment in (self.counts.first_at, self.counts.last_at)
        ]

    @property
    def trend(self) -> Trend:
        return Trend(self.counts, DAY_HOURS)

    @property
    def query(self) -> str:
        return query_of(self.counts.cause)

    def list_query(self, state: str) -> str:
        cause = self.counts.cause
        return urlencode({"status": state, "task": cause.task, "cause": causes.text_of(cause)})


def query_of(cause: Cause) -> str:
    return urlencode({"task": cause.task, "cause": causes.text_of(cause)})


def cause_of(job: Job) -> Cause | None:
    last = job.errors[-1] if job.errors else None
    if not isinstance(last, dict):
        return None
    exception, place = (str(last.get(name) or "") for name in ("exception", "place"))
    return Cause(job.task, exception, place) if exception else None
