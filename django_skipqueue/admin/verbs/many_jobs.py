"""Doing one thing to many jobs: in batches, skipping and counting what cannot be changed.

Invariant: each batch is one statement of the queue, committed by itself. An action stops within the time that web
servers allow, says how many jobs are left, and can be repeated.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib.admin.models import CHANGE
from django.utils.functional import Promise
from django.utils.translation import ngettext

from ..ui.counts import Count, grouped
from .forms import Instruction, Question
from .selection import Selection
from .summary import Survey

TIME_LIMIT = 20.0
"""Seconds; web servers commonly give up on a request after 30."""


@dataclass
class Tally:
    """What an action came to."""

    changed: int = 0
    skipped: int = 0
    left: Count | None = None
    """The jobs for which there was no time."""

    def add(self, ids: Sequence[int], changed: set[int]) -> None:
        """Count one batch."""
        self.changed += len(changed)
        self.skipped += len(ids) - len(changed)


class Action(ABC):
    """One thing that can be done with jobs. Its texts say a number of jobs; `count` chooses their plural."""

    name: ClassVar[str]
    """Of the method of the admin that runs it."""
    explanation: ClassVar[str | Promise]
    statuses: ClassVar[frozenset[str]]
    """In which a job can be changed."""
    order_all: ClassVar[Any]
    """To do it to all that were chosen, as an order; with a question mark it is the question."""
    order_some: ClassVar[str | Promise]
    order_none: ClassVar[Any]
    """That it cannot be done to any of them."""
    done: ClassVar[Any]
    """That it was done."""
    logged: ClassVar[str | Promise]
    """What the log says of one job."""
    flag: ClassVar[int] = CHANGE
    """How the log files it."""
    question: ClassVar[type[Question]] = Question
    is_dangerous: ClassVar[bool] = False
    """Whether its button is red."""

    @abstractmethod
    def change(self, ids: Iterable[int], wanted: Instruction) -> set[int]:
        """Do it; the ids of the jobs that were changed."""

    @classmethod
    def is_offered(cls, status: str | None) -> bool:
        """Whether the list of the jobs in this status offers it (`None`: in any)."""
        return status is None or status in cls.statuses

    def order(self, survey: Survey) -> str:
        """To do it to those that it can be done to; that it cannot be done where there are none."""
        number = {"number": survey.count.spoken, "count": survey.count.found}
        if not survey.eligible and not survey.count.is_capped:
            return str(self.order_none % number)
        if survey.refused:
            return self.order_some % {**number, "some": grouped(survey.eligible)}
        return str(self.order_all % number)

    def told(self, tally: Tally) -> str:
        """What it came to, for the person who did it."""
        sentences = [self.done % {"number": grouped(tally.changed), "count": tally.changed}]
        if tally.skipped:
            sentences.append(
                ngettext(
                    "%(number)s was skipped, because it could not be changed.",
                    "%(number)s were skipped, because they could not be changed.",
                    tally.skipped,
                )
                % {"number": grouped(tally.skipped)}
            )
        if tally.left is not None:
            sentences.append(
                ngettext(
                    "Stopped after %(seconds)s s; %(number)s job is left. Run the action again to continue.",
                    "Stopped after %(seconds)s s; %(number)s jobs are left. Run the action again to continue.",
                    tally.left.found,
                )
                % {"seconds": round(TIME_LIMIT), "number": tally.left.spoken}
            )
        return " ".join(map(str, sentences))

    def run(self, selection: Selection, wanted: Instruction) -> tuple[Tally, list[int]]:
        """Do it to all of the selection, as far as time allows; what it came to, and to which jobs chosen by hand."""
        deadline = time.monotonic() + TIME_LIMIT
        tally, changed = Tally(), []
        for ids in selection.batches():
            if time.monotonic() >= deadline:
                tally.left = selection.count_from(ids[0])
                break
            done = self.change(ids, wanted)
            tally.add(ids, done)
            if selection.ids is not None:
                changed += sorted(done)
        return tally, changed
