"""The pages that show the progress of a bulk action, and of a search of the whole list."""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_plus

from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ....models import WAITING, Status
from ....values.codec import shorten
from ...arguments import redacted
from ...counts import Count, grouped
from ...durations import span
from ...queues_and_workers import Workforce
from ..bulk import MOST_FOUND, BulkAction, BulkProgress
from ..verbs import many_jobs
from ..verbs.many_jobs import ChangeTally
from ..verbs.one_job import CONFIRMED
from .page import ShownState, why_it_waits


@dataclass(frozen=True)
class ProgressPage(ShownState):
    bulk: BulkAction

    @property
    def is_waiting(self) -> bool:
        """Whether the web server may still apply the verb itself. It cannot if the list was not searched completely."""
        return self.job.status in WAITING and not self.bulk.is_lower_bound

    @property
    def title(self) -> str:
        number = self._in_words(self._number)
        return capfirst(str(self.bulk.verb.action.question_title % {"number": number, "count": self._number}))

    @property
    def filter(self) -> str:
        return f"?{unquote_plus(self.bulk.query)}"

    @cached_property
    def _progress(self) -> BulkProgress:
        return BulkProgress.of(self.job) or BulkProgress(0)

    @property
    def done(self) -> int:
        """The number of jobs that were handled so far."""
        return self._progress.done

    @property
    def _number(self) -> int:
        return self._progress.counted or self.bulk.number

    def _in_words(self, number: int) -> str:
        is_lower_bound = self.bulk.is_lower_bound and self._progress.counted is None
        return Count(number, is_lower_bound, cap=number).in_words

    @property
    def most(self) -> int:
        """The total number of jobs: as counted at the start, or as handled once the job has completed."""
        return self.done if self.job.status == Status.COMPLETED else max(self._number, self.done, 1)

    @property
    def numbers(self) -> str:
        total = self._in_words(self.most)
        return gettext("%(done)s of %(number)s jobs") % {"done": grouped(self.done), "number": total}

    @property
    def result(self) -> str:
        return many_jobs.message_of(self.bulk.verb, ChangeTally(self._progress.changed, self._progress.skipped))

    @property
    def explanation(self) -> str:
        if self.job.status == Status.RUNNING and self.job.started_at:
            return gettext("Running for %(span)s") % {"span": span(self.now - self.job.started_at)}
        if self.is_final:
            return shorten(redacted(self.job.task, [], self.job.kwargs).text(self.job.last_error))
        return why_it_waits(self.job, self.now, Workforce.now())

    @property
    def live_text(self) -> str:
        """The text that a screen reader reads when the status has changed."""
        return f"{self.title}: {self.state_label}. {self.numbers}."

    @property
    def posted(self) -> list[tuple[str, object]]:
        """The form fields to post so that the web server applies the verb itself."""
        action_fields = [("action", self.bulk.action), ("select_across", "1"), ("_selected_action", "all")]
        number = self.bulk.number
        confirmation_fields = [(CONFIRMED, "yes"), ("by_hand", self.job.pk), ("number", number), ("typed", number)]
        return [*action_fields, *confirmation_fields, *self.bulk.answers.items()]


@dataclass(frozen=True)
class SearchPage(ProgressPage):
    is_waiting = False
    """A web server never searches a whole list itself."""

    @property
    def title(self) -> str:
        return gettext("Search everything")

    @property
    def done(self) -> int:
        return self.most if self._has_searched_all else self._progress.looked_at

    @property
    def most(self) -> int:
        """The approximate number of jobs in the list."""
        expected = self._progress.counted or 0
        return max(round(expected, 2 - len(str(expected))), self._progress.looked_at, 1)

    @property
    def numbers(self) -> str:
        if self._has_searched_all:
            return gettext("All jobs in the list were searched")
        numbers = {"done": grouped(self.done), "number": grouped(self.most)}
        return gettext("%(done)s of about %(number)s jobs were searched") % numbers

    @property
    def found(self) -> int:
        return len(self._progress.found)

    @property
    def result(self) -> str:
        matches = ngettext("%(number)s job matches.", "%(number)s jobs match.", self.found)
        text = matches % {"number": grouped(self.found)}
        end = gettext("The search stopped there, because it keeps no more jobs.")
        return f"{text} {end}" if self._has_stopped_early else text

    @property
    def _has_searched_all(self) -> bool:
        return self.job.status == Status.COMPLETED and not self._has_stopped_early

    @property
    def _has_stopped_early(self) -> bool:
        return self.found >= MOST_FOUND
