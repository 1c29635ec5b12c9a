"""A summary of the chosen jobs, for the question before they are changed: how many, of which tasks and errors.

Invariant: at most `MOST_READ` jobs are read, and as many counted as in a list, whatever the size of the table.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from django.db.models.functions import Left

from ...models import Status
from ...operators.counts import Count, grouped
from .selection import Selection

KINDS_SHOWN = 8

MOST_READ = 5_000
"""Jobs whose tasks and errors are looked at: their rows may be anywhere in the table."""

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
"""The class of an exception, at the start of the line about an error."""


@dataclass(frozen=True)
class Kind:
    number: int
    task: str
    exception: str

    @property
    def shown(self) -> str:
        return grouped(self.number)


@dataclass(frozen=True)
class Summary:
    count: Count
    eligible: int
    """The number of jobs in a status that the verb allows."""
    refused: list[tuple[int, Any]]
    """The number of jobs of each other status, and its label; empty where there may be more jobs."""
    looked_at: int
    """The number of jobs that were read."""
    kinds: list[Kind]
    """The kinds of the jobs that the verb can change, the most frequent first."""

    @classmethod
    def of(cls, selection: Selection, statuses: Collection[str], *, is_least: bool = False) -> "Summary":
        """Read the jobs of the selection, for a verb that these statuses allow. `is_least`: there may be more."""
        columns = ("status", "attempts", Left("task", 200), Left("last_error", 200))
        rows = list(selection.jobs.values_list(*columns)[:MOST_READ])
        is_all = len(rows) < MOST_READ and not is_least
        count = Count(len(rows)) if is_all else replace(selection.total, is_least=is_least)
        found = Counter(status for status, *_ in rows)
        refused = [(found[status], status.label) for status in Status if found[status] and status not in statuses]
        kinds = Counter(
            (task, _exception(status, attempts, error)) for status, attempts, task, error in rows if status in statuses
        )
        return cls(
            count,
            kinds.total(),
            refused if count.found == len(rows) and not count.is_least else [],
            len(rows),
            [Kind(number, *kind) for kind, number in kinds.most_common()],
        )

    @property
    def can_change_any(self) -> bool:
        """Whether there are jobs that the verb can change, or may be among those that were not read."""
        return self.eligible > 0 or self.is_partial

    @property
    def is_partial(self) -> bool:
        return self.count.is_least or self.count.found > self.looked_at

    @property
    def read(self) -> str:
        return grouped(self.looked_at)

    @property
    def kinds_shown(self) -> list[Kind]:
        return self.kinds[:KINDS_SHOWN]

    @property
    def others(self) -> int:
        return sum(kind.number for kind in self.kinds[KINDS_SHOWN:])


def _exception(status: str, attempts: int, error: str) -> str:
    """The class that the last attempt raised. Empty if it raised none: a reason may contain a secret."""
    has_failed = status == Status.FAILED or (status == Status.SCHEDULED and attempts > 0)
    found = EXCEPTION.match(error) if has_failed else None
    return found[0] if found else ""
