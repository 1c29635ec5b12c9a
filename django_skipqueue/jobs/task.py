"""A task: a function whose calls can be deferred. `Task.defer` makes a job of a call.

Invariant: a call that cannot run (a wrong name, a missing argument, a value that is not JSON) raises before anything is
written. A task gets values that are equal to the values that were passed, or have the types of its annotations.

`call_columns` makes the columns of a job that depend on the arguments of its call, such as keys. A part reads the
arguments from `Arguments`. Invariant: a call of a task without keys costs nothing there, and a call with keys reads
only the arguments that are part of a key.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError
from django.utils.crypto import salted_hmac

from ..conf import load, settings
from ..exceptions import FlattenedValue, InvalidArguments, InvalidOption, InvalidTask
from ..values.backoff import RetryPolicy
from ..values.codec import decode, encode
from ..values.records import NO_COLUMNS, ClaimedJob, DeferredJobs, EncodedCall, JobSpec
from ..values.redaction import Redacted, has_secret
from ..values.redaction import redact as redacted_call
from .advice import check_names, explain, instead_of_method, wrong_keyword
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
    """The alias of the backend of a task of `django.tasks`."""

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
        # Cached for each form of call: `places_of` takes ten times as long as all else.
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
            """Raise `AttributeError`.

            If another task queue has a method of this name, such as Celery's `delay`, the message names ours.
            """
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{instead_of_method(name)}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, as if it were not a task."""
        return self.function(*args, **kwargs)

    def defer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """Insert a job in the caller's transaction, and return it.

        Raises `InvalidArguments`, and writes nothing, if the arguments do not fit the task or are not JSON. If
        a job holds the unique key, returns that job, with `job.created` False, or does what `on_conflict` says.
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
        after: jobs that must be finished before the new job begins.
        after_failure: what happens if one of the jobs in `after` fails or is discarded: `wait` until it is retried and
        completes (default), `discard` the new job, or `run` the new job nevertheless.

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
        """The codec of the return annotation; `None` if results are plain JSON, or not annotated."""
        from .annotations import annotations_of, codec_of

        return codec_of(annotations_of(self.__wrapped__).get("return"))

    def encoded_result(self, result: Any) -> str:
        """A result as JSON. If a result does not fit the annotation, it is stored only if it is plain JSON.

        Raises `InvalidArguments` for a result that does not fit and is not JSON.
        """
        if self.result_type is not None:
            with suppress(InvalidArguments):
                result = self.result_type.encode("The result", result)
        return encode("The result", result)

    def result_of(self, job: "AbstractJob") -> R | None:
        """The return value of the task in this job, in the type of its annotation; `None` if it returned nothing.

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
        if django_settings.DEBUG:  # a mistake is easier to find here than in the worker
            self._scalars.encode(args, kwargs)
        plain, named = args, kwargs
        if types is not None:
            plain, named = types.encode(args, kwargs)
        try:
            texts = texts_of(names, keys, plain, named)
        except FlattenedValue:
            from .annotations import CallTypes

            # A member of an enumeration counts as its value where an annotation such as `str` asks for the value.
            values = CallTypes.of_values(self.__wrapped__, self.signature).encode(plain, named)
            texts = texts_of(names, keys, *values)
        return check_size(EncodedCall(*texts, call_columns(self, args, kwargs)), load().max_argument_bytes)

    def require_fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for arguments that do not fit the signature."""
        self._form(len(args), tuple(kwargs))

    def encoded_from_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Return the call of arguments that are JSON already, such as those of a row, with its unique key.

        Uses no code of the project, not even the types of the arguments, unless `unique_key` is a function.
        """
        self._form(len(args), tuple(kwargs))
        call = EncodedCall(encode("args", args), encode("kwargs", kwargs), call_columns(self, args, kwargs))
        return check_size(call, settings.max_argument_bytes)

    @property
    def is_internal(self) -> bool:
        """Whether this is a task of the package itself: nobody else defers or schedules its jobs."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def named_database(self) -> str | None:
        """The alias of the database that its options name; `None`: the setting `PLACEMENT` chooses, or `DATABASE`."""
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
        """The arguments of a call by `.s()`. Raises `InvalidOption` for another task or other options."""
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

        count: the number of positional arguments.

        Returns the names of the positional arguments, the keywords as JSON keys, and the types of the parameters. The
        result is cached for each form of call, because this takes three times as long as the rest of a call.
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
    """A task whose function takes a `JobContext` first. A `.defer()` leaves it out; a direct call passes it."""

    def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Call the function directly, with a context made by the caller."""
        return self.function(context, *args, **kwargs)


def yields(function: Callable[..., Any]) -> bool:
    """Whether a call of this function only makes a generator, and does not run its body."""
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


ARGUMENTS = repeat(True)
"""The `is_argument` of `encode` for each argument."""


def parts_of(call: Mapping[str, Any] | Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """One item of `defer_many` as positional and keyword arguments."""
    if isinstance(call, list | tuple):
        return call, {}
    if isinstance(call, Mapping):
        return (), call
    raise InvalidArguments(f"give task.s(…), a dict of keyword arguments, or a tuple of positional ones, not {call!r}.")


def texts_of(
    names: Sequence[str], keys: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """The positional arguments as a JSON list, the keyword arguments as a JSON object. Raises `InvalidArguments`.

    names: the names of the positional arguments. keys: the keywords as JSON keys.
    """
    values = ",".join(map(encode, names, args, ARGUMENTS))
    pairs = ",".join(map(str.__add__, keys, map(encode, kwargs, kwargs.values(), ARGUMENTS))) if kwargs else ""
    return f"[{values}]", f"{{{pairs}}}"


Place = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Takes one argument from the positional arguments and the keyword arguments of a call."""


class Arguments:
    """The arguments of one call, which fit the signature: see `CallArguments`. Encodes only what a part asks for."""

    def __init__(self, task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task = task
        self.args = args
        self.kwargs = kwargs
        self._places = task.places(len(args), tuple(kwargs))
        self._redact = (*load().redact, *task.redact)  # `settings.redact` takes ten times as long

    @property
    def task_name(self) -> str:
        """See `CallArguments`."""
        return self._task.name

    def hashed(self, names: Sequence[str]) -> dict[str, Any]:
        """See `CallArguments`."""
        given = {name: self._stored(name) for name in names if name in self._places}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else value
            for name, value in given.items()
        }

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """See `CallArguments`."""
        given = {name: self._stored(name) if name in self._places else None for name in names or self._places}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else canonical(name, value)
            for name, value in given.items()
        }

    def _stored(self, name: str) -> Any:
        return self._task.encoded_argument(name, self._places[name](self.args, self.kwargs))


def call_columns(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of parts that depend on the arguments, which fit the signature.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if not task.options.of_parts:  # nearly all tasks: the rest takes as long as encoding a call
        return NO_COLUMNS
    columns: dict[str, Any] = {}
    call = Arguments(task, args, kwargs)
    for part in task.options.of_parts:
        columns |= part.columns(call)
    return columns


SALT = "django_skipqueue.tasks.unique"


def _hash(name: str, value: Any) -> str:
    """A hash in place of a value that is, or contains, a secret, made with the oldest secret key of the project.

    The hash stays when that key moves to `SECRET_KEY_FALLBACKS`: jobs that wait keep their keys, and processes with the
    settings from before and after the move agree.
    """
    oldest = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS][-1]
    return f"hmac:{salted_hmac(SALT, canonical(name, value), oldest, algorithm='sha256').hexdigest()}"


def canonical(name: str, value: Any) -> str:
    """The value as JSON. Equal dictionaries have equal texts."""
    text = encode(name, value)
    return json.dumps(decode(text), ensure_ascii=False, sort_keys=True) if text[0] in "{[" else text


def places_of(signature: inspect.Signature, count: int, keywords: Sequence[str]) -> dict[str, Place]:
    """Where each argument is in a call with this number of positional arguments and these keywords, by name.

    In the order of the parameters, and with the defaults. `*rest` is a tuple under its name. The arguments in
    `**options` have their own names. Raises `InvalidArguments` if such a call does not fit.
    """
    try:
        bound = signature.bind(*range(count), **{keyword: keyword for keyword in keywords}).arguments
    except TypeError as error:
        raise InvalidArguments(f"{error}.") from None
    places: dict[str, Place] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            places[name] = _rest(count - len(bound.get(name, ())))
        elif parameter.kind is parameter.VAR_KEYWORD:
            places |= {keyword: _keyword(keyword) for keyword in sorted(bound.get(name, ()))}
        elif name not in bound:
            places[name] = lambda *_, default=parameter.default: default
        elif isinstance(at := bound[name], int):
            places[name] = _positional(at)
        else:
            places[name] = _keyword(at)
    return places


def _positional(position: int) -> Place:
    return lambda args, _: args[position]


def _rest(first: int) -> Place:
    return lambda args, _: tuple(args[first:])


def _keyword(name: str) -> Place:
    return lambda _, kwargs: kwargs[name]
