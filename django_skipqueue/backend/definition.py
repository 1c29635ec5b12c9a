"""`@task` on this backend: Django's task with our options, and its entry in the registry that `@job` fills as well.

Invariant: a task is registered when it is defined, and again when it is enqueued, because settings may have changed in
between. A name in a row never causes an import.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..backoff import Backoff
from ..exceptions import InvalidArguments, InvalidOption, UnknownTask
from ..tasks.context import JobContext
from ..tasks.options import Options
from ..tasks.registry import registry
from ..tasks.task import Task
from ..values.codec import decode
from ..values.outcomes import Outcome
from ..values.records import ClaimedJob
from ..values.retry_policy import RetryPolicy
from .framework import AnyTask, InvalidTask
from .mapping import ALIAS, UnreadResult, stand_in, unread
from .options import options_for, resolved
from .running import around, is_unstorable_result

if TYPE_CHECKING:
    from ..models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipQueueTask(AnyTask):
    """Django's task, with the options that this backend adds: `@task(max_attempts=3)` on Django 6.1 and newer."""

    max_attempts: int | None = None
    """`None`: `max_attempts` of the backend's `OPTIONS`, or else `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """From the number of the failed attempt to seconds, or the path of such a function; `None`: that of `OPTIONS`."""
    timeout: float | None = None
    """Seconds after which an attempt is interrupted and fails; `None`: `timeout` of the backend's `OPTIONS`, if any."""

    def __post_init__(self) -> None:
        """Validate, and register."""
        AnyTask.__post_init__(self)  # `super()` does not work in a dataclass with slots
        registered(self)


class DjangoTask(Task[..., Any]):
    """The registry's entry for a task of Django's."""

    def __init__(self, definition: AnyTask) -> None:
        super().__init__(
            around(definition),
            name=definition.module_path,
            options=options_of(definition),
            policy=Policy(),
            takes_context=True,
            timeout=getattr(definition, "timeout", None),
        )
        self.definition = definition
        self.__wrapped__ = definition.func
        own = signature(definition.func)
        parameters = list(own.parameters.values())
        self.signature = own.replace(parameters=parameters[1:] if definition.takes_context else parameters)

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """A callable that builds the task result. `around` calls it only if the task or a signal receiver needs it."""
        return partial(unread, job, self.definition, status="running", database=context.database)

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """The policy with the task's own backoff, or that of the alias on which the job was enqueued."""
        alias = decode(job.metadata).get(ALIAS, self.definition.backend)
        backoff = getattr(self.definition, "backoff", None) or options_for(alias).backoff
        return Policy(backoff=resolved(backoff)) if backoff else self.policy

    def result(self, job: ClaimedJob, *, status: str) -> UnreadResult:
        """The result of a job that has ended as `status`."""
        alias = decode(job.metadata).get(ALIAS, self.definition.backend)
        return unread(job, self.definition, status=status, database=options_for(alias).database)


class Policy(RetryPolicy):
    """Retries every error except one: the return value of a task that ran to its end cannot be stored."""

    def decide(self, error: BaseException, entry: dict[str, Any], *, attempt: int, max_attempts: int) -> Outcome:
        """See `RetryPolicy.decide`."""
        last = attempt if is_unstorable_result(error) else max_attempts  # no attempts left: not retried
        return super().decide(error, entry, attempt=attempt, max_attempts=last)


def registered(definition: AnyTask) -> DjangoTask:
    """Return the registry's entry for this task. Makes one if there is none, or if it belongs to another function."""
    known = entry(definition.module_path)
    if known is None or known.definition.func is not definition.func:
        known = DjangoTask(definition)
        registry.register(known)
    return known


def entry(name: str) -> DjangoTask | None:
    """The registry's entry of this name if it is a task of Django's, else `None`."""
    try:
        known = registry.get(name)
    except UnknownTask:
        return None
    return known if isinstance(known, DjangoTask) else None


def definition_of(job: "Job") -> AnyTask | None:
    """The task of a job; `None` if the job was not enqueued by `django.tasks` and its task is not one of Django's."""
    known = entry(job.task)
    if known is not None:
        return known.definition
    return stand_in(job.task, alias=job.metadata[ALIAS]) if ALIAS in job.metadata else None


def options_of(definition: AnyTask) -> Options:
    """The options of this task's jobs. Raises `InvalidTask` for a value that cannot be used."""
    due_in: Any = definition.run_after
    try:
        return Options(
            queue_name=definition.queue_name,
            priority=int(definition.priority),
            max_attempts=getattr(definition, "max_attempts", None),
            run_after=due_in if isinstance(due_in, timedelta) else None,  # a datetime is checked by Django
            timeout=getattr(definition, "timeout", None),
        )
    except (InvalidOption, InvalidArguments) as error:
        raise InvalidTask(str(error)) from None
