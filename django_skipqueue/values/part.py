"""`Part`: a feature in a folder of its own, which plugs into the core. Pure.

Invariant: the core and the console name no part. They ask `installed_parts`, which the app fills when Django starts.

`PartColumns` is what a part's columns of the job row add to the SQL of the core. `queue.fragments` joins the statements
once, at import, from the core's own text and from what the parts add.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import Signature
from typing import Any, Literal, Protocol, Self

from .records import Dependant, EncodedCall, JobSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a feature gives to the core. Each default is "nothing"."""

    name: str
    depends: tuple[str, ...] = ()
    """Names of the parts that it needs."""

    # At `.defer()`

    placement: Any = None
    """Its `jobs.placement.Placement`, which chooses the database of each job."""
    joined_database: Callable[[], str | None] | None = None
    """Returns the alias of the database for all jobs that the caller defers now; `None`: any database will do."""
    in_spec: Callable[[JobSpec, Any], JobSpec] | None = None
    """Returns the spec of jobs with what the code around the enqueue adds, such as a batch. Its second argument is the
    connection. Raises `InvalidOption`."""
    of_queue: Callable[[str, Sequence[EncodedCall]], dict[str, Any]] | None = None
    """Returns the columns that `SKIPQUEUE["QUEUES"]` gives to calls of one task. Its arguments are the queue that the
    setting names, and the calls."""
    unique_keys: Any = None
    """Its `queue.unique_keys.UniqueKeys`."""
    hold: Callable[[Any, JobSpec, Sequence[int]], Sequence[Dependant]] | None = None
    """Has new jobs wait for the jobs that their spec names, in the transaction of the INSERT. Returns the new jobs that
    need not wait."""

    # Until it runs

    gate: Any = None
    """Its `queue.gates.Gate`, which keeps jobs out of their queues until a condition holds."""

    # In a worker

    in_exchange: Callable[..., Any] | None = None
    """Makes the `worker.in_exchange.InExchange` of a worker: see `make_in_exchange` there. At most one part sets
    this."""
    observers: tuple[tuple[Callable[[], Any], Callable[[Any, Any], Any]], ...] = ()
    """Functions that make an observer of a process (see `worker.dispatcher`), each with the function that makes, with a
    `Store` and the observer, the service that writes down what was observed."""
    settle_services: tuple[Callable[[Any, Callable[[], bool]], Any], ...] = ()
    """Services of a process that settles jobs (see `worker.dispatcher`). Each is made with the process's `Store`, and
    with a function that returns whether the process has no job that could be delayed."""
    after_settle: Callable[[Any, Sequence[tuple[int, int, int | None]]], None] | None = None
    """Called with the rows that a settle by hand has written: ids, leases and batches. Workers have `settle_services`.
    """
    before_drained: Callable[[Any], Any] | None = None
    """Called with the store before a drain ends. Returns a true value if it has done something that makes jobs."""

    # In a supervisor

    services: tuple[Callable[[Any], Any], ...] = ()
    """Services of a supervisor, each made with its `Store`."""
    watches: tuple[Callable[[Any, Callable[[], bool]], Any], ...] = ()
    """Services of a supervisor that run after its others. Each is made with its `Store`, and with a function that
    returns whether the sinks have handled all events of the process."""
    gauges: tuple[tuple[Any, Callable[[Any], float | None]], ...] = ()
    """Metrics of the health port with a series for each process, each with the function that returns the value for a
    `WorkerProcessState`; `None`: the process has no value."""
    run_supervisors: Callable[..., int] | None = None
    """Runs a supervisor for each database that one command serves, and returns the exit code: see `console.cli.run`."""

    # Once it is finished

    prune_grace: float = 0.0
    """Seconds after its retention for which a supervisor keeps a job."""
    before_prune: Callable[[Any], Callable[[], None]] | None = None
    """Makes, with a `Store`, a function that is called before each batch of jobs is pruned."""
    on_prune: Callable[[Any, list[int]], dict[str, int] | None] | None = None
    """Prunes jobs, given a `Store` and their ids, in the transaction of its caller. Returns the number of jobs by
    status; `None`: the core deletes the jobs."""

    # What happened, and who hears of it

    receivers: tuple[tuple[Any, Callable[..., None]], ...] = ()
    """Receivers of Django signals, each with its signal."""

    # For Django, tests and operators

    checks: tuple[Callable[..., list[Any]], ...] = ()
    """System checks of Django."""
    database_checks: tuple[Callable[..., list[Any]], ...] = ()
    """System checks that run with `check --database` and `migrate`."""
    planned: Callable[[bool | Sequence[Any]], Sequence[Any]] | None = None
    """Returns each `testing.run.Planned` event, for tests that pass the time. Its argument: `True` for all events, or a
    list of tasks for the events of these tasks."""
    clock: Callable[[str], Any] | None = None
    """Makes, with the alias of a database, the `testing.run.Clock` of its gate, for tests that pass the time."""
    console: Callable[[], Any] | None = None
    """Imports and returns what the part gives to operators: a `PartConsole`. No worker calls it."""


def console_of(package: str) -> Callable[[], Any]:
    """Returns the field `console` of the part in this package: imports the constant `CONSOLE` of its `console.py`."""
    return lambda: import_module(f"{package}.console").CONSOLE


def later(path: str) -> Callable[..., Any]:
    """Returns a function that imports and calls the function at `path`: only few processes need its module."""
    module, _, name = path.rpartition(".")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


placements_of_parts: list[Any] = []
gates_of_parts: list[Any] = []
specs_of_parts: list[Callable[[JobSpec, Any], JobSpec]] = []
parts_by_name: dict[str, Part] = {}


def install_parts(parts: Iterable[Part]) -> None:
    """Have the core use these parts, in their order. Installing a part again changes nothing."""
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
    """The parts of this process."""
    return tuple(parts_by_name.values())


class CallArguments(Protocol):
    """The arguments of a call, for columns that depend on them."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def task_name(self) -> str: ...

    def hashed(self, names: Sequence[str]) -> dict[str, Any]:
        """The named arguments that the call has, as the job stores them. A secret is hashed, because keys are shown."""

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """The named arguments as JSON, equal for equal values; without names all arguments. A secret is hashed.

        An argument that the call does not have is `null`.
        """


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """The options of `@job` and `.using()` that a part adds: each field of a subclass is an option, by default `None`.

    The subclass is `OPTIONS` in the part's `options.py`, which is pure. A task has an object of the subclass only if it
    was given one of its options. An object that exists is valid.
    """

    @property
    def has_shard(self) -> bool:
        """Whether the options choose among several databases."""
        return False

    @property
    def has_key(self) -> bool:
        """Whether the jobs have a key that holds within one database."""
        return False

    @property
    def fixed_key(self) -> str | None:
        """The unique key of every job; `None`: the jobs have none, or `makes_key`."""
        return None

    @property
    def makes_key(self) -> bool:
        """Whether the unique key depends on the arguments."""
        return False

    @property
    def calls_project(self) -> bool:
        """Whether a `.defer()` calls a function of the project's for these options."""
        return False

    @property
    def is_limited(self) -> bool:
        """Whether jobs of the task may wait for the end of others."""
        return False

    def shard(self, stored: Callable[[Sequence[str]], list[Any]]) -> str:
        """The text that chooses the database. `stored` returns arguments as the job stores them."""
        raise NotImplementedError

    def check_signature(self, signature: Signature) -> None:
        """Raise `InvalidOption` if an option names an argument that the task does not take."""

    def check_beside(self, others: Sequence["PartOptions"]) -> None:
        """Raise `InvalidOption` if the options do not go together with the options of other parts."""

    def changed(self, given: Mapping[str, Any]) -> Self:
        """These options, with the values that `@job` or `.using()` was given."""
        return replace(self, **given)

    def check_using(self, given: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` if `.using()` cannot change these options to the given values."""

    def in_spec(self, spec: JobSpec) -> JobSpec:
        """The spec with the fields that the options set. Raises `InvalidOption`."""
        return spec

    def columns(self, call: CallArguments) -> dict[str, Any]:
        """The columns that depend on the arguments: see `EncodedCall.columns`. Raises `InvalidOption`."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The SQL half of a gate. The other half, which admits jobs, is a `queue.gates.Gate`.

    In each condition the columns of a job are written in braces: `{run_after}`.
    """

    gate: str
    """The gate's name."""
    status: Literal["scheduled", "blocked"] = "blocked"
    """The job's status while it waits at this gate."""
    holds: str
    """The condition under which the gate keeps a job waiting."""
    key: str = ""
    """The column with the key by which the gate admits; empty: it has no keys."""
    returns: str = ""
    """When a job has lost its worker, the condition under which it waits at this gate again. Empty: it never does."""
    keeps_released: bool = False
    """Whether `returns` counts only for a job whose attempt is charged. A released job then goes back to its queue."""
    grants_permits: bool = False
    """Whether a job that has passed this gate holds a permit of its key until it is finished or waits here again."""


@dataclass(frozen=True, kw_only=True)
class PartColumns:
    """The columns that a part writes when a job is inserted, and its places in statements of the core."""

    of_spec: Mapping[str, str] = field(default_factory=dict)
    """The columns that all jobs of an enqueue share, each with its SQL type: see `JobSpec.columns`."""
    key: str = ""
    """The text column whose value may differ from call to call: see `EncodedCall.columns`."""
    of_key: Mapping[str, str] = field(default_factory=dict)
    """The columns that a call with a key has beside the key, each with its SQL type. All calls of an enqueue that have
    a key share the values of these columns."""
    gate: Condition | None = None
    are_copied: bool = True
    """Whether a copy of a job has these columns."""
    pieces: Mapping[str, str] = field(default_factory=dict)
    """SQL for the places of `queue.fragments.PIECES`, by the name of the place. At most one part fills a place."""
