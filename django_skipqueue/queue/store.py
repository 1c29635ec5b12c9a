"""`Store`: the queue of one database. Its methods run SQL statements, such as enqueue, claim and settle.

Functions of other modules take a store as their argument. Functions that only read the queue, or set up connections,
are in the package `queue`. Functions of a part are in the part's folder.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import chosen_or_all, settings
from ..events.sinks import Send, send
from . import claim as claims
from . import enqueue as enqueues
from . import gates, leases, notes, operate, workers
from . import prune as prunes
from . import recover as recoveries
from . import release as releases
from . import settle as settles
from .fragments import joined

__all__ = ["Store", "in_each"]

T = TypeVar("T")


def guards(only: str) -> dict[str, str]:
    """The statements that write a job by its lease, each with a variant that has the further SQL condition `only`."""
    outcomes = {**settles._PLACEHOLDERS, "only": only}
    return {
        settles.SETTLE: joined(settles._SETTLE, snoozes="", **outcomes),
        settles.SETTLE_SNOOZES: joined(settles._SETTLE, snoozes=settles._SNOOZES, **outcomes),
        settles.APPEND_CANCELLED_ERRORS: joined(settles._APPEND_CANCELLED_ERRORS, only=only),
        releases.RELEASE: joined(releases._RELEASE, **releases._GATE_AND_KEY, only=only),
        notes.NOTE_ATTEMPTS: joined(notes._NOTE_ATTEMPTS, only=only),
    }


class Store:
    """The queue of one database: `Store("default")`.

    Its methods run on this thread's connection, and most run one statement. They pass their events to `send`, which by
    default gives them to the sinks at once, in the caller's thread and transaction.
    """

    def __init__(self, alias: str, *, send: Send = send) -> None:
        self.alias = alias
        """The database's name in `DATABASES`."""
        self.send = send
        """Called with each event."""
        self.guards: Mapping[str, str] = {}
        """Statements, each with the variant to send instead, which also checks which process holds the job. Empty,
        except in a process that writes what external workers report."""
        self.holder: Mapping[str, str] = {}
        """Further parameters for the statements in `guards`."""

    @classmethod
    def default(cls) -> "Store":
        """The queue of the database in the setting `SKIPQUEUE["DATABASE"]`."""
        return cls(settings.database)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of this thread, or a dedicated connection that has replaced it."""
        return connections[self.alias]

    def guarded(self, statement: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the statement, or its variant in `guards`, with its parameters."""
        return (self.guards[statement], {**values, **self.holder}) if self.guards else (statement, values)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def expected_rows(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        """The number of rows that the planner expects; `statement` is an EXPLAIN in JSON."""
        ((plan,),) = self.rows(statement, values)
        document = json.loads(plan) if isinstance(plan, str) else plan
        return int(document[0]["Plan"]["Plan Rows"])

    def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns no rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

    # A task is deferred, and becomes a job.
    enqueue = enqueues.enqueue
    enqueue_untraced = enqueues.enqueue_untraced
    enqueue_many = enqueues.enqueue_many

    # The job may have to wait at a gate, which then admits it to its queue.
    admit = gates.admit
    next_due = gates.next_due

    # A worker claims the job.
    queues_with_jobs = claims.queues_with_jobs
    claim = claims.claim
    take_over = claims.take_over

    # The job runs. Meanwhile its worker and the supervisor write heartbeats.
    heartbeat_workers = workers.heartbeat_workers
    heartbeat_worker = workers.heartbeat_worker
    heartbeats = workers.heartbeats
    request_of_worker = workers.request_of_worker
    delete_workers = workers.delete_workers
    prune_workers = workers.prune_workers
    heartbeat_job = leases.heartbeat_job
    lost_leases = leases.lost_leases
    locked = leases.locked
    note_attempts = notes.note_attempts

    # The attempt ends, and its outcome is written.
    settle = settles.settle
    exchange = settles.exchange
    append_cancelled_errors = settles.append_cancelled_errors

    # Or the worker releases the job, or dies, so that the job must be recovered.
    release = releases.release
    release_orphans = releases.release_orphans
    end_sessions = recoveries.end_sessions
    still_holding = leases.still_holding
    recover = recoveries.recover
    recover_without_worker = recoveries.recover_without_worker

    # Operators change the job.
    retry = operate.retry
    discard = operate.discard
    cancel = operate.cancel
    run_now = operate.run_now
    postpone = operate.postpone
    reschedule = operate.reschedule
    change_queue = operate.change_queue
    change_priority = operate.change_priority
    note_copies = operate.note_copies

    # The job is deleted after its retention.
    prune = prunes.prune
    expired = prunes.expired
    prune_lag = prunes.prune_lag


def in_each(database: str | None, verb: Callable[[Store], T]) -> list[T]:
    """Call `verb` with the store of this database, or if `database` is `None`, of every database that holds a queue.

    If a database cannot be reached, the other databases are still used. At the end raises the first error, with a note
    that names all databases for which `verb` failed.
    """
    results: list[T] = []
    errors_by_alias: dict[str, OperationalError] = {}
    for alias in chosen_or_all() if database is None else (database,):
        try:
            results.append(verb(Store(alias)))
        except OperationalError as error:
            errors_by_alias[alias] = error
    for first_error in errors_by_alias.values():
        first_error.add_note(f"Nothing was done in the database {', '.join(errors_by_alias)}. Repeat it there.")
        raise first_error
    return results
