"""The jobs that an action is for, their summary before they are changed, and how a verb is applied to them.

The summary says how many jobs there are, of which tasks and errors. Invariant: whatever the size of the table, the
summary reads at most `MOST_JOBS_SUMMARISED` jobs, and counts as far as a list does.

Jobs are changed in batches; what cannot be changed is skipped and counted. Invariant: each batch is one statement of
the queue, committed by itself. An action stops within the time that web servers allow. Then its message says how many
jobs are left, and the operator can run it again.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import BooleanField, ExpressionWrapper, QuerySet
from django.db.models.functions import Left
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ....models import Job, Status
from ....queue.parameters import BATCH_ROWS
from ...counts import Count, grouped
from ...search import is_id
from ...verbs.verb import Changed, Instruction, Verb

SAMPLE_SIZE = 5
"""The number of jobs that are shown one by one."""


@dataclass(frozen=True)
class Selection:
    """Read in batches by id, so that no transaction and no list in memory grows with the number of jobs."""

    jobs: QuerySet[Job]
    ids: tuple[int, ...] | None = None
    """The ids chosen by hand, even if the list no longer shows the jobs; `None`: all jobs that match."""
    is_part: bool = False
    """Whether `jobs` are the matches in a part of the list only. A worker searches the rest of the list."""
    listed: Count | None = None
    """The number of the jobs, if the list has counted them."""
    expected: Callable[[], int] = int
    """Estimates how many jobs of the whole list match, by the database's statistics; 0 if they cannot tell."""

    @classmethod
    def by_hand(cls, chosen: Iterable[str]) -> "Selection":
        ids = tuple(sorted({int(each) for each in chosen if is_id(each)}))
        return cls(Job.objects.filter(pk__in=ids).order_by("pk"), ids)

    def posted(self) -> list[tuple[str, str]]:
        if self.ids is None:
            return [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")]
        return [(ACTION_CHECKBOX_NAME, str(pk)) for pk in self.ids]

    @cached_property
    def total(self) -> Count:
        counted = replace(self.listed or Count.in_any_order(self.jobs), is_lower_bound=self.is_part)
        return counted.or_about(self.expected()) if counted.is_capped else counted

    def count_from(self, first: int) -> Count:
        if self.ids is not None:
            return Count(sum(pk >= first for pk in self.ids))
        return Count.of(self.jobs.order_by("pk").filter(pk__gte=first))

    def sample(self) -> list[Job]:
        return list(self.jobs.only("pk", "task", "status", "attempts")[:SAMPLE_SIZE])

    def batches(self, *, after: int = 0, newest: int | None = None) -> Iterator[list[int]]:
        """The ids, ascending, above `after` up to `newest`, by default the newest now: later jobs are left out."""
        if self.ids is not None:
            yield from (list(self.ids[start : start + BATCH_ROWS]) for start in range(0, len(self.ids), BATCH_ROWS))
            return
        if newest is None:
            newest = newest_id()
        by_id = self.jobs.order_by("pk").filter(pk__lte=newest).values_list("pk", flat=True)
        while ids := list(by_id.filter(pk__gt=after)[:BATCH_ROWS]):
            yield ids
            after = ids[-1]


def newest_id() -> int:
    """The highest id of a job; 0 if there is none."""
    return Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


KINDS_SHOWN = 8

MOST_JOBS_SUMMARISED = 5_000
"""Jobs whose tasks and errors are read: their rows may be anywhere in the table."""

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
"""The class of an exception, at the start of the line about an error."""


@dataclass(frozen=True)
class JobKind:
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
    """The number of jobs that the verb can change."""
    refused: list[tuple[int, Any]]
    """For each status, how many jobs the verb cannot change, and the label; empty if there may be more jobs."""
    looked_at: int
    """The number of jobs that were read."""
    kinds: list[JobKind]
    """The kinds of the jobs that the verb can change, the most frequent first."""

    @classmethod
    def of(cls, selection: Selection, verb: Verb, *, is_lower_bound: bool = False) -> "Summary":
        """Read the jobs of the selection, for a verb. `is_lower_bound`: there may be more."""
        fits = ExpressionWrapper(verb.condition, BooleanField())
        rows = list(
            selection.jobs.values_list("status", "attempts", Left("task", 200), Left("last_error", 200), fits)[
                :MOST_JOBS_SUMMARISED
            ]
        )
        is_all = len(rows) < MOST_JOBS_SUMMARISED and not is_lower_bound
        count = Count(len(rows)) if is_all else replace(selection.total, is_lower_bound=is_lower_bound)
        unfit = Counter(status for status, *_, fits in rows if not fits)
        refused = [(unfit[status], status.label) for status in Status if unfit[status]]
        kinds = Counter(
            (task, _exception(status, attempts, error)) for status, attempts, task, error, fits in rows if fits
        )
        return cls(
            count,
            kinds.total(),
            refused if count.found == len(rows) and not count.is_lower_bound else [],
            len(rows),
            [JobKind(number, *kind) for kind, number in kinds.most_common()],
        )

    @property
    def can_change_any(self) -> bool:
        """Whether there are jobs that the verb can change, or may be among those that were not read."""
        return self.eligible > 0 or self.is_partial

    @property
    def is_partial(self) -> bool:
        return self.count.is_lower_bound or self.count.found > self.looked_at

    @property
    def read(self) -> str:
        return grouped(self.looked_at)

    @property
    def kinds_shown(self) -> list[JobKind]:
        return self.kinds[:KINDS_SHOWN]

    @property
    def others(self) -> int:
        return sum(kind.number for kind in self.kinds[KINDS_SHOWN:])


def _exception(status: str, attempts: int, error: str) -> str:
    """The class that the last attempt raised. Empty if it raised none: a reason may contain a secret."""
    has_failed = status == Status.FAILED or (status == Status.SCHEDULED and attempts > 0)
    found = EXCEPTION.match(error) if has_failed else None
    return found[0] if found else ""


TIME_LIMIT = 20.0
"""Seconds; web servers commonly give up on a request after 30."""


@dataclass
class ChangeTally:
    changed: int = 0
    skipped: int = 0
    locked: int = 0
    """The number of skipped jobs whose rows a session has locked."""
    left: Count | None = None
    """The number of jobs for which there was no time."""
    shown_ids: Changed = field(default_factory=dict)
    """The changed jobs; empty if the selection is "all jobs that match"."""


def apply(verb: Verb, selection: Selection, instruction: Instruction) -> ChangeTally:
    """Apply the verb to all jobs of the selection, as far as time allows."""
    deadline = time.monotonic() + TIME_LIMIT
    tally = ChangeTally()
    for ids in selection.batches():
        if time.monotonic() >= deadline:
            tally.left = selection.count_from(ids[0])
            break
        changed = verb.apply(ids, instruction)
        tally.changed += len(changed)
        if skipped := set(ids) - changed.keys():
            tally.skipped += len(skipped)
            tally.locked += len(verb.locked_among(skipped))
        if selection.ids is not None:
            tally.shown_ids |= changed
    return tally


def question_title_of(verb: Verb, summary: Summary) -> str:
    """The title of the question, without its question mark; the refusal if none of the jobs can be changed."""
    number, count = summary.count.in_words, summary.count.found
    if not summary.can_change_any:
        refusal = ngettext("This job cannot be %(done)s.", "None of these %(number)s jobs can be %(done)s.", count)
        return refusal % {"number": number, "done": verb.done}
    if summary.refused:
        number = gettext("%(some)s of %(number)s") % {"some": grouped(summary.eligible), "number": number}
    # a language may begin it with the number, which may be in words
    return capfirst(str(verb.action.question_title % {"number": number, "count": count}))


def question_of(verb: Verb, summary: Summary) -> str:
    """The title with its question mark; the refusal if none of the jobs can be changed."""
    title = question_title_of(verb, summary)
    return gettext("%(order)s?") % {"order": title} if summary.can_change_any else title


def message_of(verb: Verb, tally: ChangeTally) -> str:
    sentences = [str(verb.action.done % {"number": grouped(tally.changed), "count": tally.changed})]
    if tally.skipped:
        skipped = ngettext(
            "%(number)s was skipped, because it could not be changed.",
            "%(number)s were skipped, because they could not be changed.",
            tally.skipped,
        )
        sentences.append(skipped % {"number": grouped(tally.skipped)})
    if tally.locked:
        locked = ngettext(
            "A database session has locked the row of %(number)s of them.",
            "Database sessions have locked the rows of %(number)s of them.",
            tally.locked,
        )
        sentences.append(locked % {"number": grouped(tally.locked)})
    if tally.left is not None:
        left = ngettext(
            "Stopped after %(seconds)s s; %(number)s job is left. Run the action again to continue.",
            "Stopped after %(seconds)s s; %(number)s jobs are left. Run the action again to continue.",
            tally.left.found,
        )
        sentences.append(left % {"seconds": round(TIME_LIMIT), "number": tally.left.in_words})
    return " ".join(sentences)
