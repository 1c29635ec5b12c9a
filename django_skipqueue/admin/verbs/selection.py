"""The jobs an action is for: some chosen by hand, or all that match a list."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet

from ...models import Job
from ...operators.counts import Count
from ...operators.ids import is_id
from ...store.statements import BATCH

SAMPLE = 5
"""Jobs that are shown one by one."""


@dataclass(frozen=True)
class Selection:
    """Read in batches by id, so that no transaction and no list in memory grows with the number of jobs."""

    jobs: QuerySet[Job]
    ids: tuple[int, ...] | None
    """Those chosen by hand, even if the list no longer shows them; `None`: all that match."""
    is_part: bool = False
    """Whether these are all that match in a part of the list only. A worker searches the rest of it."""
    listed: Count | None = None
    """Their number, if their list has counted them."""
    expected: Callable[[], int] = int
    """About how many match in all of the list, by the database's statistics; 0 if these do not say."""

    @classmethod
    def by_hand(cls, chosen: Iterable[str]) -> "Selection":
        ids = tuple(sorted({int(each) for each in chosen if is_id(each)}))
        return cls(Job.objects.filter(pk__in=ids).order_by("pk"), ids)

    @classmethod
    def all_matching(
        cls,
        jobs: QuerySet[Job],
        *,
        is_part: bool = False,
        listed: Count | None = None,
        expected: Callable[[], int] = int,
    ) -> "Selection":
        return cls(jobs, None, is_part, listed, expected)

    def posted(self) -> list[tuple[str, str]]:
        if self.ids is None:
            return [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")]
        return [(ACTION_CHECKBOX_NAME, str(pk)) for pk in self.ids]

    @cached_property
    def total(self) -> Count:
        counted = replace(self.listed or Count.in_any_order(self.jobs), is_least=self.is_part)
        return counted.or_about(self.expected()) if counted.is_capped else counted

    def count_from(self, first: int) -> Count:
        if self.ids is not None:
            return Count(sum(pk >= first for pk in self.ids))
        return Count.of(self.jobs.order_by("pk").filter(pk__gte=first))

    def sample(self) -> list[Job]:
        return list(self.jobs.only("pk", "task", "status", "attempts")[:SAMPLE])

    def batches(self, *, after: int = 0, newest: int | None = None) -> Iterator[list[int]]:
        """The ids, ascending, above `after` up to `newest`, by default the newest now: later jobs are left out."""
        if self.ids is not None:
            yield from (list(self.ids[start : start + BATCH]) for start in range(0, len(self.ids), BATCH))
            return
        if newest is None:
            newest = newest_id()
        by_id = self.jobs.order_by("pk").filter(pk__lte=newest).values_list("pk", flat=True)
        while ids := list(by_id.filter(pk__gt=after)[:BATCH]):
            yield ids
            after = ids[-1]


def newest_id() -> int:
    """The highest id of a job; 0 if there is none."""
    return Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
