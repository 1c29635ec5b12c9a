"""Applying a verb to many jobs: in batches, skipping and counting what cannot be changed.

Invariant: each batch is one statement of the queue, committed by itself. An action stops within the time that web
servers allow. Then its message says how many jobs are left, and the operator can run it again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ...counts import Count, grouped
from .forms import Instruction
from .selection import Selection, Summary
from .verb import Action, Changed, Verb

TIME_LIMIT = 20.0
"""Seconds; web servers commonly give up on a request after 30."""


@dataclass
class Tally:
    changed: int = 0
    skipped: int = 0
    left: Count | None = None
    """The jobs for which there was no time."""
    ids: list[int] = field(default_factory=list)
    """The ids of the changed jobs; empty if the selection is "all that match"."""

    def add(self, ids: Sequence[int], changed: Changed) -> None:
        self.changed += len(changed)
        self.skipped += len(ids) - len(changed)


def apply(verb: Verb, selection: Selection, instruction: Instruction) -> Tally:
    """Apply the verb to all jobs of the selection, as far as time allows."""
    deadline = time.monotonic() + TIME_LIMIT
    tally = Tally()
    for ids in selection.batches():
        if time.monotonic() >= deadline:
            tally.left = selection.count_from(ids[0])
            break
        changed = verb.change(ids, instruction)
        tally.add(ids, changed)
        if selection.ids is not None:
            tally.ids += sorted(changed)
    return tally


def question_title_of(action: Action, summary: Summary) -> str:
    """The title of the question, without its question mark; the refusal if none of the jobs can be changed."""
    number = {"number": summary.count.in_words, "count": summary.count.found}
    if not summary.can_change_any:
        return str(action.refusal % number)
    if not summary.refused:
        title = str(action.question_title % number)
        return capfirst(title)  # a language may begin it with the number, which may be in words
    return str(action.question_title_partial) % {**number, "some": grouped(summary.eligible)}


def question_of(action: Action, summary: Summary) -> str:
    """The title with its question mark; the refusal if none of the jobs can be changed."""
    title = question_title_of(action, summary)
    return gettext("%(order)s?") % {"order": title} if summary.can_change_any else title


def message_of(action: Action, tally: Tally) -> str:
    sentences = [str(action.done % {"number": grouped(tally.changed), "count": tally.changed})]
    if tally.skipped:
        skipped = ngettext(
            "%(number)s was skipped, because it could not be changed.",
            "%(number)s were skipped, because they could not be changed.",
            tally.skipped,
        )
        sentences.append(skipped % {"number": grouped(tally.skipped)})
    if tally.left is not None:
        left = ngettext(
            "Stopped after %(seconds)s s; %(number)s job is left. Run the action again to continue.",
            "Stopped after %(seconds)s s; %(number)s jobs are left. Run the action again to continue.",
            tally.left.found,
        )
        sentences.append(left % {"seconds": round(TIME_LIMIT), "number": tally.left.in_words})
    return " ".join(sentences)
