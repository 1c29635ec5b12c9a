"""`Store`: the queue of one database. It runs statements, and its methods are the verbs of a plain job.

Everything else that is done with the database is a function that takes a store: functions for observers and connections
are in `queue`, functions of a part are in the folder of the part.
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
    """The statements by which a lease is used, each with the one that also has the condition `only`, in SQL."""
    outcomes = {**settles._PLACES, "only": only}
    return {
        settles.SETTLE: joined(settles._SETTLE, snoozes="", **outcomes),
        settles.SETTLE_SNOOZES: joined(settles._SETTLE, snoozes=settles._SNOOZES, **outcomes),
        settles.APPEND_CANCELLED_ERRORS: joined(settles._APPEND_CANCELLED_ERRORS, only=only),
        releases.RELEASE: joined(releases._RELEASE, **releases._PLACES, only=only),
        notes.NOTE_ATTEMPTS: joined(notes._NOTE_ATTEMPTS, only=only),
    }


class Store:
    """The queue of one database: `Store("default")`.

    Its methods run on this thread's connection; most run one statement. A store is passed to its users as an argument.
    Its methods give their events to `send`: by default to the sinks, at once, in the caller's thread and transaction.
    """

    def __init__(self, alias: str, *, send: Send = send) -> None:
        self.alias = alias
        """The database's name in `DATABASES`."""
        self.send = send
        """Called with each event."""
        self.guards: Mapping[str, str] = {}
        """By statement: the statement that is sent in its place, and also checks who holds the job. Empty, except in a
        process that writes what external workers report."""
        self.holder: Mapping[str, str] = {}
        """Further values for the statements of `guards`."""

    @classmethod
    def default(cls) -> "Store":
        """The queue of the database that `SKIPQUEUE["DATABASE"]` names."""
        return cls(settings.database)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of this thread, or the connection that `dedicated_connection` has put in its place."""
        return connections[self.alias]

    def guarded(self, statement: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The statement, or its substitute in `guards`, with its values."""
        return (self.guards[statement], {**values, **self.holder}) if self.guards else (statement, values)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
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
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

    # A task is deferred, and becomes a job.
    enqueue = enqueues.enqueue
    enqueue_untraced = enqueues.enqueue_untraced
    enqueue_many = enqueues.enqueue_many

    # The job waits at gates, which admit it.
    admit = gates.admit
    next_due = gates.next_due

    # A worker claims the job.
    queues_with_jobs = claims.queues_with_jobs
    claim = claims.claim
    take_over = claims.take_over

    # The job runs, as long as its worker writes heartbeats.
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

    # The attempt comes to an outcome.
    settle = settles.settle
    exchange = settles.exchange
    append_cancelled_errors = settles.append_cancelled_errors

    # Or the worker releases the job, or dies.
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
    """Apply the verb in this database; `None`: in all databases that hold queues, even if one cannot be reached.

    Raises the first error of a database, with a note that names the databases where nothing was done.
    """
    done: list[T] = []
    failed: dict[str, OperationalError] = {}
    for alias in chosen_or_all() if database is None else (database,):
        try:
            done.append(verb(Store(alias)))
        except OperationalError as error:
            failed[alias] = error
    for first in failed.values():
        first.add_note(f"Nothing was done in the database {', '.join(failed)}. Repeat it there.")
        raise first
    return done
