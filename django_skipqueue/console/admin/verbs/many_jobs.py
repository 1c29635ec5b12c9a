"""Applies a verb to many jobs: the selection, the summary on the confirmation page, and the change in batches.

The summary says how many jobs are selected, and how many of them have which task and error. However large the table
is, the summary reads at most `MOST_JOBS_SUMMARISED` jobs, and stops counting at the same number as the job list.

Jobs are changed in batches. A job that cannot be changed is skipped and counted. Each batch is one SQL statement of the
queue, which is committed by itself. An action stops within the time that web servers allow. Its message then says how
many jobs are left, and the operator can run the action again.
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
"""The confirmation page lists the jobs if there are at most this many."""


@dataclass(frozen=True)
class Selection:
    """The jobs that an action changes. They are read in batches by id, to limit the use of memory."""

    jobs: QuerySet[Job]
    ids: tuple[int, ...] | None = None
    """The ids of the ticked jobs, even if the list no longer shows them; `None` if all matching jobs are selected."""
    is_part: bool = False
    """Whether `jobs` only contains matches from a part of the list. A worker searches the rest."""
    listed: Count | None = None
    """The number of jobs, if the list has counted them."""
    expected: Callable[[], int] = int
    """Estimates how many jobs of the whole list match, from the database's statistics; 0 if that is unknown."""

    @classmethod
    def by_hand(cls, posted_ids: Iterable[str]) -> "Selection":
        ids = tuple(sorted({int(value) for value in posted_ids if is_id(value)}))
        return cls(Job.objects.filter(pk__in=ids).order_by("pk"), ids)

    def posted(self) -> list[tuple[str, str]]:
        """Return the form fields with which a page posts this selection."""
        if self.ids is None:
            return [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")]
        return [(ACTION_CHECKBOX_NAME, str(pk)) for pk in self.ids]

    @cached_property
    def total(self) -> Count:
        counted = replace(self.listed or Count.in_any_order(self.jobs), is_lower_bound=self.is_part)
        return counted.or_about(self.expected()) if counted.is_capped else counted

    def count_from(self, first: int) -> Count:
        """Count the selected jobs from this id on."""
        if self.ids is not None:
            return Count(sum(pk >= first for pk in self.ids))
        return Count.of(self.jobs.order_by("pk").filter(pk__gte=first))

    def sample(self) -> list[Job]:
        return list(self.jobs.only("pk", "task", "status", "attempts")[:SAMPLE_SIZE])

    def batches(self, *, after: int = 0, newest: int | None = None) -> Iterator[list[int]]:
        """Yield the ids above `after` in ascending order, up to `newest`. By default, that is the newest job now."""
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
    """Return the highest job id, or 0 if there are no jobs."""
    return Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


KINDS_SHOWN = 8
"""The summary lists at most this many kinds of jobs."""

MOST_JOBS_SUMMARISED = 5_000
"""The summary reads the tasks and errors of at most this many jobs, because reading distant rows takes time."""

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
"""Matches the exception class at the start of an error message."""


@dataclass(frozen=True)
class JobKind:
    """A group of selected jobs with the same task, and the same exception of their last attempt."""

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
    """How many jobs the verb cannot change, for each status, with its label; empty if there may be more jobs."""
    looked_at: int
    """The number of jobs that were read."""
    kinds: list[JobKind]
    """The jobs that the verb can change, grouped by task and exception, the largest group first."""

    @classmethod
    def of(cls, selection: Selection, verb: Verb, *, is_lower_bound: bool = False) -> "Summary":
        """Summarize the selected jobs for this verb. `is_lower_bound`: there may be more jobs."""
        fits_verb = ExpressionWrapper(verb.condition, BooleanField())
        rows = list(
            selection.jobs.values_list("status", "attempts", Left("task", 200), Left("last_error", 200), fits_verb)[
                :MOST_JOBS_SUMMARISED
            ]
        )
        is_all = len(rows) < MOST_JOBS_SUMMARISED and not is_lower_bound
        count = Count(len(rows)) if is_all else replace(selection.total, is_lower_bound=is_lower_bound)
        unfit_counts = Counter(status for status, *_columns, fits_verb in rows if not fits_verb)
        refused_counts = [(unfit_counts[status], status.label) for status in Status if unfit_counts[status]]
        kinds = Counter(
            (task, _exception_name(status, attempts, error))
            for status, attempts, task, error, fits_verb in rows
            if fits_verb
        )
        return cls(
            count,
            kinds.total(),
            refused_counts if count.found == len(rows) and not count.is_lower_bound else [],
            len(rows),
            [JobKind(number, *kind) for kind, number in kinds.most_common()],
        )

    @property
    def can_change_any(self) -> bool:
        """Whether the verb can change some of the jobs, or may be able to change jobs that were not read."""
        return self.eligible > 0 or self.is_partial

    @property
    def is_partial(self) -> bool:
        return self.count.is_lower_bound or self.count.found > self.looked_at

    @property
    def read(self) -> str:
        """The number of jobs that were read, as text."""
        return grouped(self.looked_at)

    @property
    def kinds_shown(self) -> list[JobKind]:
        return self.kinds[:KINDS_SHOWN]

    @property
    def others(self) -> int:
        """The number of jobs in the groups that the page does not list."""
        return sum(kind.number for kind in self.kinds[KINDS_SHOWN:])


def _exception_name(status: str, attempts: int, error: str) -> str:
    """Return the exception class of the last attempt, or empty if it raised none. The message may contain a secret."""
    has_failed = status == Status.FAILED or (status == Status.SCHEDULED and attempts > 0)
    match = EXCEPTION.match(error) if has_failed else None
    return match[0] if match else ""


TIME_LIMIT = 20.0
"""An action stops after this many seconds, because web servers commonly abort a request after 30."""


@dataclass
class ChangeTally:
    changed: int = 0
    skipped: int = 0
    locked: int = 0
    """The number of skipped jobs whose rows are locked by a database session."""
    left: Count | None = None
    """The number of jobs that remain because time ran out."""
    shown_ids: Changed = field(default_factory=dict)
    """The changed jobs; empty if all matching jobs were selected."""


def apply(verb: Verb, selection: Selection, instruction: Instruction) -> ChangeTally:
    """Apply the verb to the selected jobs, until time runs out."""
    deadline = time.monotonic() + TIME_LIMIT
    tally = ChangeTally()
    for ids in selection.batches():
        if time.monotonic() >= deadline:
            tally.left = selection.count_from(ids[0])
            break
        changed = verb.apply(ids, instruction)
        tally.changed += len(changed)
        if skipped_ids := set(ids) - changed.keys():
            tally.skipped += len(skipped_ids)
            tally.locked += len(verb.locked_among(skipped_ids))
        if selection.ids is not None:
            tally.shown_ids |= changed
    return tally


def question_title_of(verb: Verb, summary: Summary) -> str:
    """Return the question without its question mark, or a refusal if none of the jobs can be changed."""
    number, count = summary.count.in_words, summary.count.found
    if not summary.can_change_any:
        refusal = ngettext("This job cannot be %(done)s.", "None of these %(number)s jobs can be %(done)s.", count)
        return refusal % {"number": number, "done": verb.done}
    if summary.refused:
        number = gettext("%(some)s of %(number)s") % {"some": grouped(summary.eligible), "number": number}
    # In some languages the title begins with the number, which may be in words.
    return capfirst(str(verb.action.question_title % {"number": number, "count": count}))


def question_of(verb: Verb, summary: Summary) -> str:
    """Return the question, or a refusal if none of the jobs can be changed."""
    title = question_title_of(verb, summary)
    return gettext("%(order)s?") % {"order": title} if summary.can_change_any else title


def message_of(verb: Verb, tally: ChangeTally) -> str:
    sentences = [str(verb.action.done % {"number": grouped(tally.changed), "count": tally.changed})]
    if tally.skipped:
        skipped_sentence = ngettext(
            "%(number)s was skipped, because it could not be changed.",
            "%(number)s were skipped, because they could not be changed.",
            tally.skipped,
        )
        sentences.append(skipped_sentence % {"number": grouped(tally.skipped)})
    if tally.locked:
        locked_sentence = ngettext(
            "A database session has locked the row of %(number)s of them.",
            "Database sessions have locked the rows of %(number)s of them.",
            tally.locked,
        )
        sentences.append(locked_sentence % {"number": grouped(tally.locked)})
    if tally.left is not None:
        left_sentence = ngettext(
            "Stopped after %(seconds)s s; %(number)s job is left. Run the action again to continue.",
            "Stopped after %(seconds)s s; %(number)s jobs are left. Run the action again to continue.",
            tally.left.found,
        )
        sentences.append(left_sentence % {"seconds": round(TIME_LIMIT), "number": tally.left.in_words})
    return " ".join(sentences)
