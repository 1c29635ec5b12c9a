"""What a verb would do: how many of the chosen jobs it can change, in which status and of which task.

The database counts the jobs in groups, a window of the list at a time; no job is read one by one.
"""

from collections import Counter
from dataclasses import dataclass

from django.db.models import Count, ExpressionWrapper, Q
from django.db.models.fields import BooleanField

from ...models import Status
from ...operators.job_states import RETRYING, STATES
from ...operators.window import Window
from ..terminal.console import Console
from .choosing import Choice

HAS_RUN = ExpressionWrapper(Q(attempts__gt=0), BooleanField())


@dataclass(frozen=True)
class Survey:
    kinds: Counter[tuple[str, str, bool]]
    cut: list[Window]
    """The windows after which lists go on that were not looked at."""

    @classmethod
    def of(cls, choice: Choice, fits: Q, console: Console) -> "Survey":
        kinds: Counter[tuple[str, str, bool]] = Counter()
        does_fit = ExpressionWrapper(fits, BooleanField())
        cut: list[Window] = []
        for part in choice.parts():
            cut += [part.cut_after] if part.cut_after else []
            jobs = part.jobs.order_by().annotate(has_run=HAS_RUN, fits=does_fit)
            groups = jobs.values_list("status", "has_run", "task", "fits").annotate(number=Count("pk"))
            for status, has_run, task, fit, number in groups:
                state = RETRYING if status == Status.SCHEDULED and has_run else status
                kinds[state, task, bool(fit)] += number
            console.progress(f"{kinds.total():,} jobs found …")
        console.end_progress()
        return cls(kinds, cut)

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def eligible(self) -> int:
        return sum(number for (*_, fits), number in self.kinds.items() if fits)

    @property
    def skipped(self) -> list[str]:
        """The numbers of all others in each state: `2 are completed already`, `1 is running already`."""
        unfit = Counter[str]()
        for (state, _, fits), number in self.kinds.items():
            if not fits:
                unfit[state] += number
        found = [(unfit[state], state) for state in STATES if unfit[state]]
        return [f"{number:,} {'is' if number == 1 else 'are'} {state} already" for number, state in found]

    def show(self, console: Console, *, in_json: bool) -> None:
        kinds = [(state, task, number, fits) for (state, task, fits), number in self.kinds.most_common()]
        if in_json:
            for state, task, number, would_change in kinds:
                console.json({"status": state, "task": task, "jobs": number, "would_change": would_change})
        elif kinds:
            rows = [(state, f"{number:,}", "yes" if would else "no", task) for state, task, number, would in kinds]
            console.table(("status", "jobs", "would change", "task"), rows, right=("jobs",))
