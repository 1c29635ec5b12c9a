"""`chain`: calls that run one after the other, each once the call before it is finished.

One transaction inserts all jobs of a chain, and they all belong to one batch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections

from ...exceptions import InvalidOption
from ...jobs.placement import placement
from ...jobs.task_call import TaskCall
from ...values.records import JobReference
from .batch import Batch, as_call, current_batch, defer_all, in_batch
from .options import AfterFailure, references_to

if TYPE_CHECKING:
    from ...models import Job

Step = TaskCall | Sequence[TaskCall] | Any


class Chain:
    """Steps that run one after the other. `chain()` makes a chain; `defer()` inserts its jobs."""

    def __init__(self, steps: Sequence[Step], *, after_failure: AfterFailure, database: str | None) -> None:
        if database is not None and database not in connections:
            raise InvalidOption(f"database must be one of {', '.join(sorted(connections))}, not {database!r}.")
        if not steps:
            raise InvalidOption("A chain needs at least one call.")
        checked_steps = []
        for number, step in enumerate(steps, start=1):
            parallel_calls = step if isinstance(step, list | tuple) else [step]
            if not parallel_calls:
                raise InvalidOption(f"Step {number} of the chain is an empty list.")
            checked_steps.append([as_call(f"step {number} of the chain", call) for call in parallel_calls])
        bound_to = (call.bound_to for calls in checked_steps for call in calls)
        self.database = placement().for_batch(database, None, bound_to)
        self.after_failure: AfterFailure = after_failure
        self.steps = [
            [in_batch(f"step {number} of the chain", call, self.database) for call in calls]
            for number, calls in enumerate(checked_steps, start=1)
        ]

    def defer(self) -> "list[Job]":
        """Insert the jobs in the caller's transaction, and return them in the order of the calls.

        The jobs join the batch whose `with` block the caller is in, or else a new batch.
        """
        if current_batch.get() is not None:
            return self._insert()
        task_names = [self.steps[index][0].spec.task for index in (0, -1)]
        first, last = (task_name.rpartition(".")[2] for task_name in task_names)  # without the modules
        name = first if len(self.steps) == 1 else f"{first} → {last}"
        with Batch(database=self.database, name=name):
            return self._insert()

    async def adefer(self) -> "list[Job]":
        """`defer` for async code."""
        return await sync_to_async(self.defer)()

    def _insert(self) -> "list[Job]":
        inserted: list[Job] = []
        after: tuple[JobReference, ...] = ()
        for calls in self.steps:
            jobs = defer_all(
                call.waiting_for(after, after_failure=self.after_failure) if after else call for call in calls
            )
            after = references_to(jobs)
            inserted += jobs
        return inserted


def chain(*steps: Step, after_failure: AfterFailure = "wait", database: str | None = None) -> Chain:
    """Make a chain: `chain(fetch.s(1), parse.s(1), [mail.s("a"), mail.s("b")]).defer()`.

    steps: each is a call, a task, or a list of calls that run in parallel; the next step waits for all of them.
    after_failure: what happens to the next step if a call fails or is discarded: `wait` until the call is retried and
    completes (default), `discard` the next step, or `run` it anyway.
    database: the alias of the database, instead of the choice of `SKIPQUEUE["PLACEMENT"]` or `DATABASE`.

    Results are not passed on as arguments: a task with `takes_context` finds them in `context.results`. Raises
    `InvalidOption` if a value is not valid.
    """
    return Chain(steps, after_failure=after_failure, database=database)
