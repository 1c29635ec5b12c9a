"""`Part` describes a feature in its own folder, which plugs into the core. This module has no side effects.

The core and the console do not import any part. They call `installed_parts`, which the app fills when Django starts.

A part may add columns to the job table. `PartColumns` describes these columns, and the SQL that they need in the core's
statements. `queue.fragments` builds the statements once, at import.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from inspect import Signature
from typing import Any, Literal, Protocol, Self

from .outcomes import Outcome
from .records import Dependant, EncodedCall, JobSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """The functions and objects that a feature gives to the core. Every field is optional except the name."""

    name: str
    depends: tuple[str, ...] = ()
    """Names of the parts that this part needs."""

    # At `.defer()`

    placement: Any = None
    """A `jobs.placement.Placement`, which chooses the database of each new job."""
    joined_database: Callable[[], str | None] | None = None
    """Returns the alias of the database into which the caller must put all jobs now, for example because the caller
    adds to a batch there. Returns `None` if any database will do."""
    in_spec: Callable[[JobSpec, Any], JobSpec] | None = None
    """Takes the spec of new jobs and the connection. Returns the spec with the columns that the caller's `with` block
    adds, such as a batch. Raises `InvalidOption`."""
    of_queue: Callable[[str, Sequence[EncodedCall]], dict[str, Any]] | None = None
    """Takes the name of a queue, and calls of one task. Returns the columns that the setting `SKIPQUEUE["QUEUES"]`
    gives to jobs in this queue, such as a limit."""
    unique_keys: Any = None
    """A `queue.unique_keys.UniqueKeys`, which enforces unique keys."""
    hold: Callable[[Any, JobSpec, Sequence[int]], Sequence[Dependant]] | None = None
    """Takes the store, the spec and the ids of new jobs. Makes the new jobs wait for the jobs that their spec names, in
    the transaction of the INSERT. Returns the new jobs that need not wait."""

    # Until it runs

    gate: Any = None
    """A `queue.gates.Gate`, which keeps jobs out of their queues until a condition is true."""

    # In a worker

    in_exchange: Callable[..., Any] | None = None
    """Makes a worker's `worker.in_exchange.InExchange`, which adds statements to the worker's round trips. At most one
    part sets this."""
    observers: tuple[tuple[Callable[[], Any], Callable[[Any, Any], Any]], ...] = ()
    """Pairs of functions. The first function makes an observer, which sees the events of a process (see
    `worker.dispatcher`). The second function takes a `Store` and the observer, and makes the service that stores the
    observations."""
    settle_services: tuple[Callable[[Any, Callable[[], bool]], Any], ...] = ()
    """Functions that make services for a process that settles jobs (see `worker.dispatcher`). Their arguments are the
    process's `Store`, and a function that returns whether the process is idle, so that a service delays no job."""
    after_settle: Callable[[Any, Sequence[tuple[int, int, int | None]]], None] | None = None
    """Called with the job id, the lease and the batch id of each job that was settled outside of a worker. Workers use
    `settle_services` instead."""
    before_drained: Callable[[Any], Any] | None = None
    """Called with the store when a worker with `--drain` finds no more jobs. Returns a true value if it may have made
    new jobs, so that the worker looks for jobs again."""

    # When an operator changes jobs

    on_operate: Callable[[Any, str, Sequence[int]], None] | None = None
    """Called with the `Store`, a verb, and the ids of the jobs that the verb has changed, in the verb's transaction."""

    # In a supervisor

    services: tuple[Callable[[Any], Any], ...] = ()
    """Functions that make the services of a supervisor, each given the supervisor's `Store`."""
    watches: tuple[Callable[[Any, Callable[[], bool]], Any], ...] = ()
    """Functions that make services which a supervisor runs after all other services. Their arguments are the `Store`,
    and a function that returns whether all events of the process have been logged and sent as signals."""
    gauges: tuple[tuple[Any, Callable[[Any], float | None]], ...] = ()
    """Metrics of the health port. Each metric has one series per process, and a function that returns the value for a
    `WorkerProcessState`, or `None` if the process has no value."""
    run_supervisors: Callable[..., int] | None = None
    """Runs one supervisor per database when one command serves several databases, and returns the exit code."""

    # Once it is finished

    prune_grace: float = 0.0
    """Seconds for which a supervisor still keeps a job after the job's retention has ended."""
    before_prune: Callable[[Any], Callable[[], None]] | None = None
    """Takes a `Store`, and returns a function that is called before each batch of jobs is pruned."""
    on_prune: Callable[[Any, list[int]], dict[str, int] | None] | None = None
    """Takes a `Store` and the ids of jobs, and prunes the jobs in the caller's transaction. Returns the number of
    pruned jobs by status, or `None` to let the core delete the jobs."""

    # Signals

    receivers: tuple[tuple[Any, Callable[..., None]], ...] = ()
    """Pairs of a Django signal and a receiver to connect to it."""

    # For Django, tests and operators

    checks: tuple[Callable[..., list[Any]], ...] = ()
    """System checks of Django."""
    database_checks: tuple[Callable[..., list[Any]], ...] = ()
    """System checks that run with `check --database` and `migrate`."""
    planned: Callable[[bool | Sequence[Any]], Sequence[Any]] | None = None
    """Returns the events to come, as `testing.run.Planned`, for tests that move the clock forward. Its argument is a
    list of tasks, or `True` for the events of all tasks."""
    after_step: Callable[[str, Callable[[], None]], Any] | None = None
    """Takes the name of a step and a function. Returns a context manager, in which the attempt calls the function once
    this step is recorded, so that a test can end the attempt there."""
    clock: Callable[[str], Any] | None = None
    """Takes the alias of a database, and returns the `testing.run.Clock` of the part's gate, for tests that move the
    clock forward."""
    console: Callable[[], Any] | None = None
    """Imports and returns the part's `PartConsole`, which holds its admin pages and subcommands. Workers never call
    it."""


class PartOfAttempt(Protocol):
    """What a part keeps about one attempt: see `AttemptHandle.parts`. Its methods never raise."""

    def raised(self) -> None:
        """The task's code has raised; the outcome is decided after this. Called in its thread."""

    def ended(self, outcome: Outcome) -> Outcome:
        """The task's code has ended with this outcome. Returns the outcome of the attempt. Called in its thread."""

    def released(self, store: Any) -> None:
        """The worker is about to release the job, whose code runs on. Called in the thread of the control loop."""


def console_of(package: str) -> Callable[[], Any]:
    """Return a function for `Part.console`, which imports `console.py` of this package and returns its `CONSOLE`."""
    return cache(lambda: import_module(f"{package}.console").CONSOLE)


def later(path: str) -> Callable[..., Any]:
    """Return a function that imports the function at `path` only when it is called, as most processes never call it."""
    module, _, name = path.rpartition(".")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


placements_of_parts: list[Any] = []
gates_of_parts: list[Any] = []
specs_of_parts: list[Callable[[JobSpec, Any], JobSpec]] = []
parts_by_name: dict[str, Part] = {}


def install_parts(parts: Iterable[Part]) -> None:
    """Make the core use these parts, in this order. Installing a part a second time changes nothing."""
    for part in parts:
        parts_by_name[part.name] = part
        if part.gate is not None and part.gate not in gates_of_parts:
            gates_of_parts.append(part.gate)
        if part.in_spec is not None and part.in_spec not in specs_of_parts:
            specs_of_parts.append(part.in_spec)
        if part.placement is not None and part.placement not in placements_of_parts:
            placements_of_parts.append(part.placement)
        for signal, receiver in part.receivers:
            signal.connect(receiver, dispatch_uid=f"django_skipqueue.{part.name}")


def installed_parts() -> tuple[Part, ...]:
    """All parts that `install_parts` has installed."""
    return tuple(parts_by_name.values())


class CallArguments(Protocol):
    """The arguments of a call, for job columns whose values depend on the arguments."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def task_name(self) -> str: ...

    def hashed(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the named arguments, as far as the call has them, as the job stores them. Secret values are hashed."""

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """Return the named arguments, or all arguments without `names`, as JSON that is equal for equal values.

        Secret values are hashed. An argument that the call does not have is `null`.
        """


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """Base class for the options that a part adds to `@job` and `.using()`. Each field of a subclass is an option.

    The default of each option is `None`. The subclass is `OPTIONS` in the part's `options.py`, which imports only
    `values` and `exceptions`. A task has an instance only if it sets at least one of the part's options. The options of
    an existing instance are valid.
    """

    @property
    def has_shard(self) -> bool:
        """Whether the options choose one of several databases for each job."""
        return False

    @property
    def has_key(self) -> bool:
        """Whether the jobs have a key, such as a limit's, that has an effect only within one database."""
        return False

    @property
    def fixed_key(self) -> str | None:
        """The unique key that all jobs share. `None` if the jobs have none, or if the key depends on the arguments."""
        return None

    @property
    def makes_key(self) -> bool:
        """Whether the unique key depends on the arguments."""
        return False

    @property
    def calls_project(self) -> bool:
        """Whether `.defer()` calls a function of the project to compute these options."""
        return False

    @property
    def is_limited(self) -> bool:
        """Whether a job of the task may have to wait until other jobs end."""
        return False

    def shard(self, stored: Callable[[Sequence[str]], list[Any]]) -> str:
        """The string whose hash chooses the database. `stored` returns the named arguments as the job stores them."""
        raise NotImplementedError

    def check_signature(self, signature: Signature) -> None:
        """Raise `InvalidOption` if an option names an argument that the task does not take."""

    def check_beside(self, others: Sequence["PartOptions"]) -> None:
        """Raise `InvalidOption` if the options cannot be combined with the options of other parts."""

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return a copy of these options with the values that were given to `@job` or `.using()`."""
        return replace(self, **given)

    def check_using(self, given: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` if `.using()` cannot change these options to the given values."""

    def in_spec(self, spec: JobSpec) -> JobSpec:
        """Return the spec of new jobs with the fields that these options set. Raises `InvalidOption`."""
        return spec

    def columns(self, call: CallArguments) -> dict[str, Any]:
        """Return the job's columns that depend on the arguments: see `EncodedCall.columns`. Raises `InvalidOption`."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The SQL condition under which a job waits at a gate. A `queue.gates.Gate` admits the job later.

    In each condition, the columns of a job are written in braces, such as `{run_after}`.
    """

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"] = "blocked"
    """The job's status while it waits at this gate."""
    holds: str
    """The condition under which the gate keeps a job waiting."""
    key: str = ""
    """The column with the key, if the gate admits jobs key by key, as the gate of the limits does; else empty."""
    returns: str = ""
    """The condition under which a job whose worker died waits at this gate again. If empty, it never does."""
    keeps_released: bool = False
    """Whether `returns` applies only to a job whose attempt counts. A released job then goes straight to its queue."""
    grants_permits: bool = False
    """Whether a job that has passed this gate holds a permit of its key until it is finished or waits here again."""


@dataclass(frozen=True, kw_only=True)
class PartColumns:
    """The columns that a part writes when a job is inserted, and the SQL that it adds to the core's statements."""

    of_spec: Mapping[str, str] = field(default_factory=dict)
    """The columns that all jobs of an enqueue share, each with its SQL type: see `JobSpec.columns`."""
    key: str = ""
    """The text column whose value may differ from call to call: see `EncodedCall.columns`."""
    of_key: Mapping[str, str] = field(default_factory=dict)
    """Further columns that only calls with a key have, each with its SQL type. In one enqueue, all these calls share
    the values of these columns."""
    gate: Condition | None = None
    are_copied: bool = True
    """Whether a copy of a job has these columns."""
    pieces: Mapping[str, str] = field(default_factory=dict)
    """SQL for the placeholders in the core's statements: see `queue.fragments.PIECES`. At most one part fills each."""
