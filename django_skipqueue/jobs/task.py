"""A task: a function whose calls can be deferred. `Task.defer` makes a job of a call.

Invariant: a call that cannot run (a wrong name, a missing argument, a value that is not JSON) raises before anything is
written.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError

from ..conf import load, settings
from ..exceptions import FlattenedValue, InvalidArguments, InvalidOption, InvalidTask
from ..values.backoff import RetryPolicy
from ..values.codec import encode
from ..values.records import ClaimedJob, DeferredJobs, EncodedCall, JobSpec
from ..values.redaction import Redacted
from ..values.redaction import redact as redacted_call
from .advice import check_names, explain, instead_of_method, wrong_keyword
from .calls import call_columns, parts_of, places_of, texts_of
from .context import JobContext
from .options import Options, TaskOptions, UsingOptions, check_size, metadata_column
from .placement import insert_many, placement, shard_of
from .registry import EVENT_LOOP, THREADS, registry
from .task_call import TaskCall

if TYPE_CHECKING:
    from ..models import Job
    from ..models.job import AbstractJob
    from .annotations import CallTypes
    from .codecs import Codec


P = ParamSpec("P")
R = TypeVar("R")

INTERNAL_PREFIX = "django_skipqueue."
"""The names of the package's own tasks begin with this."""


class Task(Generic[P, R]):
    """A function registered with `@job`. Calling it calls the function; `.defer()` makes a job of the call."""

    alias: str | None = None
    """Of a task of `django.tasks`: the alias of its backend."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        name: str,
        options: Options,
        policy: RetryPolicy,
        takes_context: bool,
        timeout: float | None = None,
        atomic: bool = False,
        redact: tuple[str, ...] = (),
    ) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.policy = policy
        self.timeout = timeout
        self.atomic = atomic
        self.redact = redact
        self.takes_context = takes_context
        self.is_async = inspect.iscoroutinefunction(function)
        self.runner = EVENT_LOOP if self.is_async else THREADS
        self.signature = _signature(function, takes_context)
        self._form = lru_cache(maxsize=64)(self._check_form)
        # Cached for each form of call: `places_of` takes ten times as long as the rest.
        self.places = lru_cache(maxsize=64)(lambda count, keywords: places_of(self.signature, count, keywords))
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with the name here of a method that other queues have."""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{instead_of_method(name)}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, as if it were not a task."""
        return self.function(*args, **kwargs)

    def defer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """Insert a job in the caller's transaction, and return it.

        Raises `InvalidArguments`, and writes nothing, if the arguments do not fit the task or are not JSON. If
        a job holds the unique key, returns that job, with `job.created` False; or does as `on_conflict` says.
        """
        from ..models import Job  # tasks are made while apps are loading

        call, spec, alias = self.encoded(args, kwargs), self.spec(), ""
        registry.require_findable(self)
        try:
            alias = placement().choose(spec, call, named=self.named_database, shard=shard_of(self, call))
            return Job.objects.insert(spec, call, database=alias)
        except (DatabaseError, SynchronousOnlyOperation) as error:
            explain(error, alias or self.database)
            raise

    async def adefer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """`defer` for async code."""
        return await sync_to_async(self.defer)(*args, **kwargs)

    def defer_many(self, calls: Sequence[TaskCall | Mapping[str, Any] | Sequence[Any]]) -> DeferredJobs:
        """Insert a job for each of `calls`, in one round trip to each database, and return their ids in the same order.

        Each call is made by `.s()` of this task, whose arguments a type checker sees: `send.defer_many([send.s(1)])`;
        or it is a dict of keyword arguments, or a tuple or list of positional ones. All are checked before the first is
        written. A `unique_key` that is a function gets each call's arguments. The list that is returned also says which
        jobs were `created`, `existing` or `replaced`.

        Raises as `defer` does, and `InvalidOption` for a call of another task, or one with other options.
        """
        checked = list(self._calls(calls))
        registry.require_findable(self)
        return insert_many(self, checked)

    async def adefer_many(self, calls: Sequence[TaskCall | Mapping[str, Any] | Sequence[Any]]) -> DeferredJobs:
        """`defer_many` for async code."""
        return await sync_to_async(self.defer_many)(calls)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """The task with arguments, checked as by `.defer()`: for `.defer_many()`, a `chain`, callbacks of a `Batch`."""
        call = self.encoded(args, kwargs)
        return TaskCall(self.spec(), call, self.options.database, shard_of(self, call))

    def using(self, **options: Unpack[UsingOptions]) -> "Task[P, R]":
        """The task with other options: `send_receipt.using(priority=5).defer(payment_id=1)`.

        queue_name, priority, max_attempts, timeout, unique_key, unique, until, on_conflict: as for `@job`.
        run_after: a datetime, or a timedelta that counts from the database's clock at the `.defer()`.
        database: the alias of the database to use, in place of what `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`.
        shard_key: under the placement `spread`, jobs with an equal one are in the same database.
        metadata: a small dict of yours about the job, as JSON: the admin shows it, and `SKIPQUEUE["LINKS"]` can use it.
        after: jobs that must be finished before this one begins.
        after_failure: what happens if one of those fails or is discarded: `wait` until it is retried and completes
        (default), `discard` this one, or `run` it all the same.

        Raises `InvalidOption` for a value that cannot be used.
        """
        check_names("using", options, UsingOptions.__annotations__, elsewhere=TaskOptions.__annotations__)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.options.check_using(given)
        if "metadata" in given:
            given["metadata"] = metadata_column(given["metadata"])
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("_spec", None)
        other.options = self.options.changed(given)
        other.options.check_signature(self.signature)
        return other

    @cached_property
    def _spec(self) -> JobSpec:
        return self.options.spec(self.name)

    @cached_property
    def call_types(self) -> "CallTypes | None":
        """The types of the parameters, by their annotations; `None` if all are plain JSON.

        Read at the first call, and not at import: the annotations may name what is imported later.
        """
        from .annotations import CallTypes  # loads Django's models: tasks are made while apps are loading

        return CallTypes.of(self.__wrapped__, self.signature)

    @cached_property
    def _scalars(self) -> "CallTypes":
        from .annotations import CallTypes

        return CallTypes.of_scalars(self.__wrapped__, self.signature)

    @cached_property
    def result_type(self) -> "Codec | None":
        """The type of what the task returns, by its annotation; `None` if it is plain JSON, or not annotated."""
        from .annotations import annotations_of, codec_of

        return codec_of(annotations_of(self.__wrapped__).get("return"))

    def encoded_result(self, result: Any) -> str:
        """A result as JSON. One that does not fit the annotation is stored if it is plain JSON.

        Raises `InvalidArguments` for a result that is neither.
        """
        if self.result_type is not None:
            with suppress(InvalidArguments):
                result = self.result_type.encode("The result", result)
        return encode("The result", result)

    def result_of(self, job: "AbstractJob") -> R | None:
        """What the task has returned in this job, in the type of its annotation; `None` if it has returned nothing.

        Raises `UndecodableArguments` for a result that was stored in another form, and `RowMissing` if it is a model
        instance whose row is gone.
        """
        return self.typed_result(job.result)

    def typed_result(self, stored: Any) -> R | None:
        """A stored result in the type of the annotation, as `result_of` returns it."""
        codec = self.result_type
        result: R | None = stored if stored is None or codec is None else codec.decode("The result", stored)
        return result

    def encoded_argument(self, name: str, value: Any) -> Any:
        """The value of one argument as its job stores it; of `*args` and `**kwargs` the whole list or dict.

        Raises `InvalidArguments` for a value that does not fit the annotation. Plain JSON is not checked.
        """
        return value if self.call_types is None else self.call_types.encode_one(name, value)

    def encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Check a call as `defer` does, and return it as JSON, with its unique key. Raises as `defer` does."""
        names, keys, types = self._form(len(args), tuple(kwargs))
        if django_settings.DEBUG:  # a mistake that the task would find in a worker: it is easier to find here
            self._scalars.encode(args, kwargs)
        plain, named = args, kwargs
        if types is not None:
            plain, named = types.encode(args, kwargs)
        try:
            texts = texts_of(names, keys, plain, named)
        except FlattenedValue:
            from .annotations import CallTypes

            # Members of enumerations count as their values where an annotation such as `str` asks for those.
            values = CallTypes.of_values(self.__wrapped__, self.signature).encode(plain, named)
            texts = texts_of(names, keys, *values)
        return check_size(EncodedCall(*texts, call_columns(self, args, kwargs)), load().max_argument_bytes)

    def require_fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for arguments that do not fit the signature."""
        self._form(len(args), tuple(kwargs))

    def encoded_from_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Return the call of arguments that are JSON already, such as those of a row, with its unique key.

        Neither their types nor other code of the project's is used, unless `unique_key` is a function.
        """
        self._form(len(args), tuple(kwargs))
        call = EncodedCall(encode("args", args), encode("kwargs", kwargs), call_columns(self, args, kwargs))
        return check_size(call, settings.max_argument_bytes)

    @property
    def is_internal(self) -> bool:
        """Whether it is the package's own. The package enqueues its jobs; nobody else defers or schedules them."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def named_database(self) -> str | None:
        """The alias of the database that its options name; `None`: `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`."""
        return self.options.database

    @property
    def database(self) -> str:
        """The alias of the database for its jobs, unless `SKIPQUEUE["PLACEMENT"]` chooses one for each job."""
        return self.named_database or settings.database

    def spec(self) -> JobSpec:
        """The columns that its jobs share, with which `.defer()` inserts them."""
        return self._spec

    # Called by the executor. The backend for `django.tasks` overrides these for its own kind of task.

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """The first argument of a task with `takes_context`."""
        return context

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """The policy that decides the outcome of an exception in this job."""
        return self.policy

    def redacted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Redacted:
        """The arguments of one of the task's jobs, with a mask in place of the secret ones."""
        return redacted_call(args, kwargs, names=self.argument_names(args), also=(*settings.redact, *self.redact))

    def argument_names(self, args: Sequence[Any]) -> list[str]:
        """The parameter names of positional arguments, such as `rest[1]` in `*rest`; none for surplus arguments."""
        names: list[str] = []
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{position}]" for position in range(len(args) - len(names))]
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
        return names[: len(args)]

    def _calls(self, calls: Iterable[TaskCall | Mapping[str, Any] | Sequence[Any]]) -> Iterator[EncodedCall]:
        spec = self.spec()
        for position, call in enumerate(calls):
            try:
                yield self._own(call, spec) if isinstance(call, TaskCall) else self.encoded(*parts_of(call))
            except (InvalidArguments, InvalidOption) as error:
                raise type(error)(f"call {position}: {error}") from None

    def _own(self, call: TaskCall, spec: JobSpec) -> EncodedCall:
        """The arguments of a call by `.s()`. Raises `InvalidOption` if it is of another task, or has other options."""
        if call.spec.task != self.name:
            raise InvalidOption(f"{call.spec.task} is another task. Give calls of {self.name}, by its .s(…).")
        if (call.spec, call.database) != (spec, self.options.database):
            raise InvalidOption(
                "it has other options than the other calls. Give them once: "
                "urgent = send.using(priority=5); urgent.defer_many([urgent.s(1), urgent.s(2)])."
            )
        return call.call

    def _check_form(self, count: int, keywords: tuple[str, ...]) -> tuple[list[str], list[str], "CallTypes | None"]:
        """Check that the task is public, and that a call with these keywords fits the signature.

        count: of the positional arguments.

        Returns the names of the positional arguments, the keywords as JSON keys, and the types of the parameters. The
        result depends on nothing else and is cached for each form of call, because it takes three times as long as the
        rest of a call.
        """
        if self.is_internal:
            raise InvalidTask(f"{self.name} is the package's own task: only the package enqueues its jobs.")
        args = [None] * count
        try:
            self.signature.bind(*args, **dict.fromkeys(keywords))
        except TypeError as error:
            problem = wrong_keyword(keywords, self.signature) or f"{error}."
            raise InvalidArguments(f"{self.name}{self.signature}: {problem}") from None
        keys = [f"{encode(f'the name {keyword!r}', keyword)}:" for keyword in keywords]
        return self.argument_names(args), keys, self.call_types


class ContextTask(Task[P, R]):
    """A task whose function takes a `JobContext` first. Deferring leaves it out; calling the function passes it."""

    def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Call the function directly, with a context made by the caller."""
        return self.function(context, *args, **kwargs)


def yields(function: Callable[..., Any]) -> bool:
    """Whether a call of this function only makes a generator, without running its body."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if not takes_context:
        return signature
    first, *others = signature.parameters.values() or [None]
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidTask(
            f"{function.__qualname__} has takes_context=True, so its first parameter must be the context."
        )
    return signature.replace(parameters=[other for other in others if other is not None])
