"""The list of archived jobs: like the list of jobs, the last finished first.

Invariant: opening the list, however it is filtered, reads a page from an index, or searches one window of it.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from django.utils.translation import gettext

from ...models import FINISHED, Status
from ...operators.search import Search
from ..jobs.changelist import JobChangeList
from ..jobs.filters import QueueFilter, StateFilter, TaskFilter
from ..jobs.tabs import Tab
from .archived_jobs import ArchivedJobs


class ArchiveChangeList(JobChangeList):
    @property
    def indexed(self) -> ArchivedJobs:
        return self._indexed(self.state)

    @property
    def command(self) -> str:
        """None: no subcommand lists archived jobs."""
        return ""

    @property
    def elsewhere(self) -> Iterator[tuple[Any, str]]:
        for tab in self.tabs:
            if not tab.is_selected:
                yield tab.label, tab.address

    @cached_property
    def tabs(self) -> list[Tab]:
        everything = Tab("", gettext("all"), self._address(None), self.state is None, None)
        return [everything] + [
            Tab(status, status.label, self._address(status), status == self.state, self._count(status))
            for status in FINISHED
        ]

    def _count(self, state: str) -> Any:
        """The number of jobs with this status that pass the filters; `None` where no index has it."""
        if self.query or state == Status.COMPLETED or self._chosen(TaskFilter) or self._chosen(QueueFilter):
            return None
        return self._indexed(state).count()

    def _indexed(self, status: str | None) -> ArchivedJobs:
        return ArchivedJobs.of(status, self._chosen(TaskFilter), first=self._first, before=self._before)

    @property
    def _needs_a_window(self) -> bool:
        search = Search(self.query)
        return not search.names_an_id and (
            bool(search.words)
            or self._chosen(QueueFilter) is not None
            or self._chosen(StateFilter) != self.indexed.status
        )
