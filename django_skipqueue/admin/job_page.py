"""The page of one job: what it is, when it was what, with which arguments, and what became of each attempt."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from django.utils.translation import gettext

from ..models import Job, Status
from ..outcomes import MESSAGE_LIMIT
from ..payload import clean, shorten
from ..redaction import MASK, Redacted
from .attempts import Attempt, attempts_of
from .durations import distance, span
from .parameters import named, redacted

WAITING = frozenset({Status.SCHEDULED, Status.QUEUED})

JSON_LIMIT = 20_000
"""Characters. An argument may be megabytes long; a page should not."""

ARGUMENTS_SHOWN = 50

LINE_LIMIT = 500
"""Characters of a name, a key, or what else is a line."""


@dataclass(frozen=True)
class Moment:
    """One entry of the job's timeline."""

    label: str
    at: datetime
    distance: str


@dataclass(frozen=True)
class JobPage:
    """One job as its page shows it; `now` is the database's time."""

    job: Job
    now: datetime
    mask = MASK

    @cached_property
    def call(self) -> Redacted:
        """The arguments with their secrets masked."""
        return redacted(self.job.task, self.job.args, self.job.kwargs)

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """Each argument's name, or its place, and its value as JSON; the first ones have room, and all the limit."""
        room, shown = JSON_LIMIT, []
        passed = chain(named(self.job.task, self.call.args), self.call.kwargs.items())
        for name, value in islice(passed, ARGUMENTS_SHOWN):
            text = pretty(value, max(room, LINE_LIMIT))
            room -= len(text)
            shown.append((shorten(name, LINE_LIMIT), text))
        return shown

    @property
    def missing_arguments(self) -> int:
        """How many more there are."""
        return max(len(self.job.args) + len(self.job.kwargs) - ARGUMENTS_SHOWN, 0)

    @property
    def is_masked(self) -> bool:
        """Whether there is an argument, or a part of one, that is not shown."""
        return (self.call.args, self.call.kwargs) != (self.job.args, self.job.kwargs)

    @property
    def result(self) -> str | None:
        """What the task returned, as JSON; `None` unless it has returned."""
        return self._masked(self.job.result) if self.job.status == Status.COMPLETED else None

    @property
    def last_error(self) -> str:
        """Why the job failed, in a line or what else was written there."""
        return clean(self.call.text(self.job.last_error), LINE_LIMIT * 4)

    @property
    def reason(self) -> str:
        """Why the job was discarded, unless an attempt says so."""
        errors = self.job.errors
        last = errors[-1] if errors and isinstance(errors[-1], dict) else {}
        told = self.job.status == Status.DISCARDED and self.job.last_error != last.get("message")
        return self.last_error if told else ""

    @property
    def unique_key(self) -> str:
        """The key, short."""
        return shorten(self.call.text(self.job.unique_key or ""), LINE_LIMIT)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The newest first."""
        return [self._shown(attempt) for attempt in attempts_of(self.job)]

    @property
    def missing_attempts(self) -> int:
        """How many earlier attempts the row has not kept."""
        numbers = [attempt.number for attempt in self.attempts if attempt.number]
        return max(min(numbers) - 1, 0) if numbers else 0

    @cached_property
    def worker_name(self) -> str:
        """The process that holds or held the job."""
        return shorten(self.job.worker_name, LINE_LIMIT)

    @property
    def timeline(self) -> list[Moment]:
        """When the job was what, in order."""
        moments = sorted(self._moments(), key=itemgetter(1))
        return [Moment(label, at, distance(at, self.now)) for label, at in moments]

    @property
    def waited(self) -> str:
        """How long the job was due before its last attempt began."""
        started = self.job.started_at
        return span(started - self.job.run_after) if started and started >= self.job.run_after else ""

    @property
    def ran(self) -> str:
        """How long the last attempt took, or has taken so far."""
        started = self.job.started_at
        if started is None or self.job.status not in (Status.RUNNING, Status.COMPLETED):
            return ""
        return span((self.job.finished_at or self.now) - started)

    @property
    def metadata(self) -> str:
        """What else was kept with the job."""
        return self._masked(self.job.metadata) if self.job.metadata else ""

    def _shown(self, attempt: Attempt) -> Attempt:
        """Masked and cut. A row's texts are short, unless somebody else has written them."""
        is_holder = attempt.worker == self.job.locked_by
        return replace(
            attempt,
            worker=self.worker_name if is_holder else shorten(attempt.worker, LINE_LIMIT),
            exception=shorten(attempt.exception, LINE_LIMIT),
            message=clean(self.call.text(attempt.message), MESSAGE_LIMIT),
            traceback=clean(self.call.text(attempt.traceback), JSON_LIMIT),
        )

    def _masked(self, value: Any) -> str:
        """A value that is no argument, masked by the names within it."""
        return pretty(redacted(self.job.task, [], {"": value}).kwargs[""], JSON_LIMIT)

    def _moments(self) -> Iterator[tuple[str, datetime]]:
        job = self.job
        yield gettext("enqueued"), job.enqueued_at
        if job.run_after > job.enqueued_at:
            yield gettext("due"), job.run_after
        if job.started_at:
            yield gettext("last started") if job.status in WAITING else gettext("started"), job.started_at
        if job.finished_at:
            yield job.get_status_display(), job.finished_at


def pretty(value: Any, limit: int) -> str:
    """JSON to read; a long one is cut in the middle."""
    return clean(json.dumps(value, indent=2, ensure_ascii=False), limit)
