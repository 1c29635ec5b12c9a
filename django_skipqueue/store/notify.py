"""Waking the workers that wait for jobs, once what they wait for is committed."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..events.events import NotifyFailed
from ..events.sinks import send
from . import sql
from .statements import Statements

QUEUED, SCHEDULED = "skipqueue", "skipqueue_scheduled"
"""The channels: of workers, with the name of a queue that has got jobs; and of supervisors."""

SOON = 2.0
"""Seconds within which a supervisor looks at what is scheduled in any case: a job that is due later needs no word."""


class Notifying(Statements):
    """For control loops, which wait for jobs."""

    def listen(self) -> None:
        """Have this connection notified when a queue gets jobs; the payload is the queue's name."""
        self._execute(sql.LISTEN)

    def listen_for_scheduled(self) -> None:
        """Have this connection notified when a job is scheduled that is due soon."""
        self._execute(sql.LISTEN_SCHEDULED)


@dataclass(frozen=True)
class Notification:
    """Wakes those who wait for something. Equal ones are sent once a transaction."""

    database: str
    channel: str
    payload: str

    def __call__(self) -> None:
        """Send it now. Nothing depends on it, so that an error is only logged: the job is committed already."""
        connection = connections[self.database]
        alone = connection.get_autocommit() and not connection.in_atomic_block
        statement = sql.NOTIFY_ALONE if alone else sql.NOTIFY
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, {"channel": self.channel, "payload": self.payload})
        except Exception as error:
            send(NotifyFailed(self.payload, error))


def echo(connection: BaseDatabaseWrapper, payload: str) -> None:
    """Notify at once, on this connection, with a payload that names no queue: to learn whether it arrives."""
    with connection.cursor() as cursor:
        cursor.execute(sql.NOTIFY, {"channel": QUEUED, "payload": payload})


def wake(database: str, queue_names: Iterable[str]) -> None:
    """Notify the workers of these queues once the caller's transaction is committed.

    Not inside it: that would take PostgreSQL's database-wide notify lock at the caller's commit. Measured with 16
    clients inserting: 4,200 commits/s with the NOTIFY inside, 9,700 with it after, 14,200 without.
    """
    for queue_name in set(queue_names):
        _after_commit(Notification(database, QUEUED, queue_name))


def wake_supervisors(database: str, delays: Iterable[float]) -> None:
    """The same for those who admit scheduled jobs, if one of these, due in so many seconds, is due soon."""
    if any(0 < delay < SOON for delay in delays):
        _after_commit(Notification(database, SCHEDULED, ""))


def _after_commit(notification: Notification) -> None:
    connection = connections[notification.database]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        notification()  # the caller manages the transaction by hand: there is no hook after its commit
    elif all(hook[1] != notification for hook in connection.run_on_commit):
        transaction.on_commit(notification, using=notification.database, robust=True)
