"""What a verb would do: how many of the chosen jobs it can change, in which status and of which task.

The database counts the jobs in groups, a window of the list at a time; no job is read one by one.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Count, ExpressionWrapper, Q
from django.db.models.fields import BooleanField

from ...models import Status
from ...operators.job_states import RETRYING, STATES
from ..terminal.console import Console
from .choosing import Choice

HAS_RUN = ExpressionWrapper(Q(attempts__gt=0), BooleanField())


@dataclass(frozen=True)
class Survey:
    """The numbers of chosen jobs by state and task."""

    kinds: Counter[tuple[str, str]]
    states: Collection[str]
    """In which the verb can change a job."""
    is_cut: bool
    """Whether more may be found further down."""

    @classmethod
    def of(cls, choice: Choice, states: Collection[str], console: Console) -> "Survey":
        """Count the jobs, for a verb that can change those in these states."""
        kinds: Counter[tuple[str, str]] = Counter()
        is_cut = False
        for part in choice.parts():
            is_cut = is_cut or part.is_cut
            groups = part.jobs.order_by().annotate(has_run=HAS_RUN).values_list("status", "has_run", "task")
            for status, has_run, task, number in groups.annotate(number=Count("pk")):
                kinds[RETRYING if status == Status.SCHEDULED and has_run else status, task] += number
            console.progress(f"{kinds.total():,} jobs found …")
        console.end_progress()
        return cls(kinds, states, is_cut)

    @property
    def total(self) -> int:
        """The number of jobs."""
        return self.kinds.total()

    @property
    def eligible(self) -> int:
        """The number of jobs that the verb can change."""
        return sum(self._in(state) for state in self.states)

    @property
    def skipped(self) -> list[str]:
        """The numbers of jobs in each other state: `2 completed`, `1 running`."""
        return [f"{self._in(state):,} {state}" for state in STATES if state not in self.states and self._in(state)]

    def show(self, console: Console, *, in_json: bool) -> None:
        """Print the numbers, the largest first."""
        kinds = [(state, task, number, state in self.states) for (state, task), number in self.kinds.most_common()]
        if in_json:
            for state, task, number, would_change in kinds:
                console.json({"status": state, "task": task, "jobs": number, "would_change": would_change})
        elif kinds:
            rows = [(state, f"{number:,}", "yes" if would else "no", task) for state, task, number, would in kinds]
            console.table(("status", "jobs", "would change", "task"), rows, right=("jobs",))

    def _in(self, state: str) -> int:
        return sum(number for (each, _), number in self.kinds.items() if each == state)
