"""`Task`: a function whose calls can be deferred. `Task.defer` inserts a job, which calls the function later.

A call with a wrong name, a missing argument, or a value that is not JSON raises before anything is written. When the
job runs, the function gets values that are equal to the passed values, or that have the types of its annotations.

`call_columns` makes the columns of a job that depend on the arguments, such as the key of a limit. Parts read the
arguments from `Arguments`, which encodes only the arguments that are needed. For a task without keys it costs nothing.
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
"""How the names of the package's own tasks begin."""


class Task(Generic[P, R]):
    """A function registered with `@job`. Calling it calls the function; `.defer()` makes a job of the call."""

    alias: str | None = None
    """For a task of `django.tasks`, the alias of its backend."""

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
        self._check_form = lru_cache(maxsize=64)(self._check_form_uncached)
        # Cached by the number of positional arguments and the keywords, because `getters_of` is slow.
        self.argument_getters = lru_cache(maxsize=64)(
            lambda count, keywords: getters_of(self.signature, count, keywords)
        )
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # so that type checkers still report attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`.

            If tasks of another queue package have this method, such as Celery's `delay`, the message names our method.
            """
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{instead_of_method(name)}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, as if it were not a task."""
        return self.function(*args, **kwargs)

    def defer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """Insert a job in the caller's transaction, and return it.

        Raises `InvalidArguments`, and writes nothing, if the arguments do not fit the task or are not JSON. If another
        job holds the unique key, `on_conflict` decides; by default returns that job, whose `created` is then False.
        """
        from ..models import Job  # not at the top: tasks are defined while Django is still loading apps

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
        """Insert a job for each call, in one round trip to each database. Returns the job ids, in the calls' order.

        A call is made by `.s()` of this task, so that a type checker sees its arguments:
        `send.defer_many([send.s(1)])`. It may also be a dict of keyword arguments, or a tuple or list of positional
        arguments. All calls are checked before the first job is written. If `unique_key` is a function, it gets each
        call's arguments. The returned list also tells which jobs were `created`, `existing` or `replaced`.

        Raises the errors that `defer` raises, and `InvalidOption` for a call of another task or with other options.
        """
        encoded_calls = list(self._encoded_calls(calls))
        registry.require_findable(self)
        return insert_many(self, encoded_calls)

    async def adefer_many(self, calls: Sequence[TaskCall | Mapping[str, Any] | Sequence[Any]]) -> DeferredJobs:
        """`defer_many` for async code."""
        return await sync_to_async(self.defer_many)(calls)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Return the task with these arguments, for `.defer_many()`, a `chain`, or a callback of a `Batch`."""
        call = self.encoded(args, kwargs)
        return TaskCall(self.spec(), call, self.options.database, shard_of(self, call))

    def using(self, **options: Unpack[UsingOptions]) -> "Task[P, R]":
        """Return the task with other options: `send_receipt.using(priority=5).defer(payment_id=1)`.

        queue_name, priority, max_attempts, timeout, unique_key, unique, until, on_conflict: see `@job`.
        run_after: a datetime, or a timedelta that counts from the moment of `.defer()`, by the database's clock.
        database: the alias of the database to use, instead of the database that the settings choose.
        shard_key: with the placement `spread`, jobs with an equal shard key are in the same database.
        metadata: a small dict of your own about the job. The admin shows it, and `SKIPQUEUE["LINKS"]` can use it.
        after: jobs that must be finished before the new job begins.
        after_failure: what happens if a job in `after` fails or is discarded: `wait` until that job is retried and
        completes (default), `discard` the new job, or `run` the new job anyway.

        Raises `InvalidOption` for a value that is not valid.
        """
        check_names("using", options, UsingOptions.__annotations__, elsewhere=TaskOptions.__annotations__)
        new_options: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.options.check_using(new_options)
        if "metadata" in new_options:
            new_options["metadata"] = metadata_column(new_options["metadata"])
        changed_task = object.__new__(type(self))
        changed_task.__dict__.update(self.__dict__)
        changed_task.__dict__.pop("_spec", None)
        changed_task.options = self.options.changed(new_options)
        changed_task.options.check_signature(self.signature)
        return changed_task

    @cached_property
    def _spec(self) -> JobSpec:
        return self.options.spec(self.name)

    @cached_property
    def call_types(self) -> "CallTypes | None":
        """The codecs for the parameters, chosen by their annotations; `None` if all parameters are plain JSON.

        Annotations are read at the first call, because at import they may refer to names that are not defined yet.
        """
        from .annotations import CallTypes  # not at the top: it loads Django's models, and apps may still be loading

        return CallTypes.of(self.__wrapped__, self.signature)

    @cached_property
    def _scalars(self) -> "CallTypes":
        from .annotations import CallTypes

        return CallTypes.of_scalars(self.__wrapped__, self.signature)

    @cached_property
    def result_type(self) -> "Codec | None":
        """The codec for the task's result; `None` if the result is plain JSON, or not annotated."""
        from .annotations import annotations_of, codec_of

        return codec_of(annotations_of(self.__wrapped__).get("return"))

    def encoded_result(self, result: Any) -> str:
        """Convert a result to JSON. A result that does not fit the annotation may be stored if it is plain JSON.

        Raises `InvalidArguments` for a result that does not fit the annotation and is not JSON.
        """
        if self.result_type is not None:
            with suppress(InvalidArguments):
                result = self.result_type.encode("The result", result)
        return encode("The result", result)

    def result_of(self, job: "AbstractJob") -> R | None:
        """Return the task's return value in this job, converted to the annotated type.

        Raises `UndecodableArguments` if the stored result does not fit the annotation, and `RowMissing` if the result
        is a model instance whose row no longer exists.
        """
        return self.typed_result(job.result)

    def typed_result(self, stored: Any) -> R | None:
        """Convert a stored result to the annotated type, as `result_of` does."""
        codec = self.result_type
        result: R | None = stored if stored is None or codec is None else codec.decode("The result", stored)
        return result

    def encoded_argument(self, name: str, value: Any) -> Any:
        """Convert one argument to JSON, as a job stores it. For `*args` and `**kwargs`, the value is the list or dict.

        Raises `InvalidArguments` for a value that does not fit the annotation. Plain JSON is not checked.
        """
        return value if self.call_types is None else self.call_types.encode_one(name, value)

    def encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Check the arguments of a call, and convert them to JSON, with the columns that depend on them.

        Raises `InvalidArguments` and `InvalidOption`.
        """
        names, keys, types = self._check_form(len(args), tuple(kwargs))
        if django_settings.DEBUG:  # check types here, where a mistake is easier to find than in the worker
            self._scalars.encode(args, kwargs)
        json_args, json_kwargs = args, kwargs
        if types is not None:
            json_args, json_kwargs = types.encode(args, kwargs)
        try:
            json_texts = as_json(names, keys, json_args, json_kwargs)
        except FlattenedValue:
            from .annotations import CallTypes

            # If an annotation such as `str` asks for a value, a member of an enumeration is replaced by its value.
            values = CallTypes.of_values(self.__wrapped__, self.signature).encode(json_args, json_kwargs)
            json_texts = as_json(names, keys, *values)
        return check_size(EncodedCall(*json_texts, call_columns(self, args, kwargs)), load().max_argument_bytes)

    def require_fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for arguments that do not fit the signature."""
        self._check_form(len(args), tuple(kwargs))

    def encoded_from_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Make a call of arguments that are already JSON, such as the arguments in a job's row.

        This runs no code of the project, not even for the types of the arguments, unless `unique_key` is a function.
        """
        self._check_form(len(args), tuple(kwargs))
        call = EncodedCall(encode("args", args), encode("kwargs", kwargs), call_columns(self, args, kwargs))
        return check_size(call, settings.max_argument_bytes)

    @property
    def is_internal(self) -> bool:
        """Whether this is one of the package's own tasks, which a project cannot defer or schedule."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def named_database(self) -> str | None:
        """The alias of the database that the task's options name; `None` if the settings choose the database."""
        return self.options.database

    @property
    def database(self) -> str:
        """The alias of the database for the task's jobs, unless the setting `PLACEMENT` chooses one for each job."""
        return self.named_database or settings.database

    def spec(self) -> JobSpec:
        """The spec with which `.defer()` inserts the task's jobs."""
        return self._spec

    # The executor calls the next two methods. The backend for `django.tasks` overrides them in its own class of tasks.

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """The first argument of a task with `takes_context`."""
        return context

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """The policy that decides the outcome if the task raises an exception in this job."""
        return self.policy

    def redacted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Redacted:
        """Mask the secrets in the arguments of one of the task's jobs."""
        return redacted_call(args, kwargs, names=self.argument_names(args), also=(*settings.redact, *self.redact))

    def argument_names(self, args: Sequence[Any]) -> list[str]:
        """The parameter names of positional arguments. An argument of `*rest` has a name such as `rest[1]`."""
        names: list[str] = []
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{position}]" for position in range(len(args) - len(names))]
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
        return names[: len(args)]

    def _encoded_calls(self, calls: Iterable[TaskCall | Mapping[str, Any] | Sequence[Any]]) -> Iterator[EncodedCall]:
        spec = self.spec()
        for position, call in enumerate(calls):
            try:
                yield self._call_of(call, spec) if isinstance(call, TaskCall) else self.encoded(*split_call(call))
            except (InvalidArguments, InvalidOption) as error:
                raise type(error)(f"call {position}: {error}") from None

    def _call_of(self, call: TaskCall, spec: JobSpec) -> EncodedCall:
        """The arguments of a call made by `.s()`. Raises `InvalidOption` if it has another task or other options."""
        if call.spec.task != self.name:
            raise InvalidOption(f"{call.spec.task} is another task. Give calls of {self.name}, by its .s(…).")
        if (call.spec, call.database) != (spec, self.options.database):
            raise InvalidOption(
                "it has other options than the other calls. Give them once: "
                "urgent = send.using(priority=5); urgent.defer_many([urgent.s(1), urgent.s(2)])."
            )
        return call.call

    def _check_form_uncached(
        self, count: int, keywords: tuple[str, ...]
    ) -> tuple[list[str], list[str], "CallTypes | None"]:
        """Check that a call with `count` positional arguments and these keywords fits the signature.

        Also checks that the task is not internal. Returns the names of the positional arguments, the keywords as JSON
        keys, and the codecs of the parameters. The result is cached by `count` and `keywords`, because these checks
        take three times as long as the rest of a call.
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
    """A task whose function takes a `JobContext` first. `.defer()` omits the context; a direct call passes it."""

    def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Call the function directly, with a context made by the caller."""
        return self.function(context, *args, **kwargs)


def yields(function: Callable[..., Any]) -> bool:
    """Whether this is a generator function, so that calling it does not run its body."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if not takes_context:
        return signature
    first, *other_parameters = signature.parameters.values() or [None]
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidTask(
            f"{function.__qualname__} has takes_context=True, so its first parameter must be the context."
        )
    return signature.replace(parameters=[parameter for parameter in other_parameters if parameter is not None])


ARGUMENTS = repeat(True)
"""The value of `is_argument`, for each call of `encode` in a `map`."""


def split_call(call: Mapping[str, Any] | Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Split a call that was given to `defer_many` into positional and keyword arguments."""
    if isinstance(call, list | tuple):
        return call, {}
    if isinstance(call, Mapping):
        return (), call
    raise InvalidArguments(f"give task.s(…), a dict of keyword arguments, or a tuple of positional ones, not {call!r}.")


def as_json(
    names: Sequence[str], keys: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """Encode the positional arguments as a JSON list, and the keyword arguments as a JSON object.

    names: the names of the positional arguments. keys: the keywords as JSON keys, such as `"size":`.
    Raises `InvalidArguments`.
    """
    values = ",".join(map(encode, names, args, ARGUMENTS))
    pairs = ",".join(map(str.__add__, keys, map(encode, kwargs, kwargs.values(), ARGUMENTS))) if kwargs else ""
    return f"[{values}]", f"{{{pairs}}}"


ArgumentGetter = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Takes the positional and the keyword arguments of a call, and returns one of the arguments."""


class Arguments:
    """Gives parts the arguments of one call. Implements `CallArguments`. Encodes only arguments that a part reads."""

    def __init__(self, task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task = task
        self.args = args
        self.kwargs = kwargs
        self._getters = task.argument_getters(len(args), tuple(kwargs))
        self._redact = (*load().redact, *task.redact)  # not `settings.redact`, which takes ten times as long

    @property
    def task_name(self) -> str:
        """The name of the task."""
        return self._task.name

    def hashed(self, names: Sequence[str]) -> dict[str, Any]:
        """The stored values of these arguments, with a hash in place of each value that has a secret."""
        stored = {name: self._stored(name) for name in names if name in self._getters}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else value
            for name, value in stored.items()
        }

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """The stored values of these arguments as JSON, with a hash in place of each value that has a secret."""
        stored = {name: self._stored(name) if name in self._getters else None for name in names or self._getters}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else canonical(name, value)
            for name, value in stored.items()
        }

    def _stored(self, name: str) -> Any:
        return self._task.encoded_argument(name, self._getters[name](self.args, self.kwargs))


def call_columns(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of parts that depend on the arguments. The arguments must already fit the signature.

    Raises `InvalidOption` for a value that is not valid.
    """
    if not task.options.of_parts:  # true for most tasks, for which this function must cost nothing
        return NO_COLUMNS
    columns: dict[str, Any] = {}
    call = Arguments(task, args, kwargs)
    for part in task.options.of_parts:
        columns |= part.columns(call)
    return columns


SALT = "django_skipqueue.tasks.unique"


def _hash(name: str, value: Any) -> str:
    """Hash a value that is or contains a secret, with the oldest secret key of the project.

    When the project replaces its `SECRET_KEY`, and moves the old one to `SECRET_KEY_FALLBACKS`, the hash stays the
    same. So waiting jobs keep their keys, and processes with old and with new settings compute the same hash.
    """
    oldest_key = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS][-1]
    return f"hmac:{salted_hmac(SALT, canonical(name, value), oldest_key, algorithm='sha256').hexdigest()}"


def canonical(name: str, value: Any) -> str:
    """Encode a value as JSON with sorted keys, so that equal dictionaries become equal strings."""
    text = encode(name, value)
    return json.dumps(decode(text), ensure_ascii=False, sort_keys=True) if text[0] in "{[" else text


def getters_of(signature: inspect.Signature, count: int, keywords: Sequence[str]) -> dict[str, ArgumentGetter]:
    """For calls with `count` positional arguments and these keywords, make a getter for each argument, by name.

    The getters have the order of the parameters. The getter of a missing argument returns the default. The getter of
    `*rest` returns a tuple. Each argument in `**options` has its own getter. Raises `InvalidArguments` if such a call
    does not fit the signature.
    """
    try:  # bind positions and keywords in place of the values
        bound = signature.bind(*range(count), **{keyword: keyword for keyword in keywords}).arguments
    except TypeError as error:
        raise InvalidArguments(f"{error}.") from None
    getters: dict[str, ArgumentGetter] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            getters[name] = _rest(count - len(bound.get(name, ())))
        elif parameter.kind is parameter.VAR_KEYWORD:
            getters |= {keyword: _keyword(keyword) for keyword in sorted(bound.get(name, ()))}
        elif name not in bound:
            getters[name] = lambda *_, default=parameter.default: default
        elif isinstance(position_or_keyword := bound[name], int):
            getters[name] = _positional(position_or_keyword)
        else:
            getters[name] = _keyword(position_or_keyword)
    return getters


def _positional(position: int) -> ArgumentGetter:
    return lambda args, _: args[position]


def _rest(first: int) -> ArgumentGetter:
    return lambda args, _: tuple(args[first:])


def _keyword(name: str) -> ArgumentGetter:
    return lambda _, kwargs: kwargs[name]
