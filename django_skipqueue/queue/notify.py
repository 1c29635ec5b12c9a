"""Notify workers of queued jobs, and supervisors of scheduled jobs and paused queues. Listen for notifications.

A notification is sent after the transaction that makes the change is committed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..events.events import NotifyFailed
from ..events.sinks import Send, send
from ..values.bounds import MAX_KEY_BYTES

if TYPE_CHECKING:
    from .store import Store

# Sent by enqueue, settle, retry, run_now, release, recover, admit and resume, to notify the workers that listen.
# Sent by enqueue, settle, retry and postpone, to notify the supervisors of a scheduled job that is due soon.
# Sent by pause, resume, and a request to a worker, to notify the supervisors.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)
"""

# Sent in place of NOTIFY if the connection is not in a transaction: a NOTIFY in a separate transaction, whose commit
# does not wait for the disk. A server crash that loses the notification also disconnects all listeners.
NOTIFY_ALONE = """
SELECT pg_notify(%(channel)s, %(payload)s)
FROM set_config('synchronous_commit', 'off', true)
"""

# Sent by supervisors, and by a worker whose supervisor does not respond, to be notified when a queue gets jobs. All
# queues share one channel. The payload has the queue's name and the number of jobs.
LISTEN = "LISTEN skipqueue"

# Sent by a worker when its supervisor responds again, to get no more notifications.
UNLISTEN = "UNLISTEN *"

# Sent by supervisors, to be notified when a scheduled job is due before the next poll, when a queue was paused or
# resumed, and when an operator requests something of a worker. The payload says which of these has happened.
LISTEN_AS_SUPERVISOR = "LISTEN skipqueue_supervisors"


QUEUED_CHANNEL, SUPERVISORS_CHANNEL = "skipqueue", "skipqueue_supervisors"
"""The NOTIFY channels: one for queued jobs, one for supervisors."""

SCHEDULED_PAYLOAD, QUEUES_PAYLOAD, WORKERS_PAYLOAD, GATES_PAYLOAD = "", ",queues", ",workers", ",gates"
"""The payloads for supervisors, in this order: a scheduled job is due soon; a queue was paused or resumed; an operator
requests something of a worker; a gate may admit a blocked job. They cannot be confused with queue names, because a
queue name is not empty and has no comma."""

MOST_PAYLOAD_BYTES = 7_900
"""The most bytes of a payload that we send. PostgreSQL accepts less than 8,000 bytes."""

PROBE_PREFIX = ",probe "
"""The beginning of a payload that only tests whether notifications arrive."""

SOON = 2.0
"""Seconds between a supervisor's polls for scheduled jobs. Only a job that is due before the next poll needs a
notification."""


def listen(store: "Store") -> None:
    store.execute(LISTEN)


def unlisten(store: "Store") -> None:
    store.execute(UNLISTEN)


def listen_as_supervisor(store: "Store") -> None:
    """Make PostgreSQL send the notifications for supervisors to this connection."""
    store.execute(LISTEN_AS_SUPERVISOR)


@dataclass
class Notification:
    """A NOTIFY to send, also used as an on-commit hook. Equal notifications of one transaction are sent only once."""

    database: str
    channel: str
    subject: str
    """The name of the queue that got jobs, or one of the payloads for supervisors."""
    jobs: int = field(default=0, compare=False)
    """How many jobs the queue got, at most. A savepoint may be rolled back after its jobs were counted."""
    send: Send = field(default=send, compare=False)
    """Called with an event if the notification fails. A control loop sets it, because no sink may run in its thread."""

    @property
    def payload(self) -> str:
        """The queue's name, followed by a comma and the number of jobs if there are several jobs."""
        return self.subject if self.jobs <= 1 else f"{self.subject},{self.jobs}"

    def __call__(self) -> None:
        """Send the notification now. An error is only logged, because the job is committed, and a poll will find it."""
        connection = connections[self.database]
        try:
            is_in_no_transaction = connection.get_autocommit() and not connection.in_atomic_block
            statement = NOTIFY_ALONE if is_in_no_transaction else NOTIFY
            with connection.cursor() as cursor:
                cursor.execute(statement, {"channel": self.channel, "payload": self.payload})
        except Exception as error:
            self.send(NotifyFailed(self.database, self.subject if self.channel == QUEUED_CHANNEL else "", error))


def jobs_in(payload: str) -> tuple[str, int]:
    """The queue name and the number of jobs in a payload. The name is empty in a payload of another kind.

    Anybody who can connect to the database can send any payload. A payload without a valid number counts as one job.
    """
    queue_name, _, number = payload.partition(",")
    if len(queue_name.encode()) > MAX_KEY_BYTES:
        return "", 1
    return queue_name, int(number) if re.fullmatch("[1-9][0-9]{0,8}", number) else 1


def echo(connection: BaseDatabaseWrapper, payload: str) -> None:
    """Send a NOTIFY at once, on this connection, with a payload that names no queue, to test whether it arrives."""
    with connection.cursor() as cursor:
        cursor.execute(NOTIFY, {"channel": QUEUED_CHANNEL, "payload": payload})


def wake(store: "Store", queue_names: Iterable[str] | Mapping[str, int]) -> None:
    """Notify the workers of these queues after the caller's transaction is committed.

    queue_names: the queue name of each job, or the number of jobs by queue name.
    A NOTIFY inside the transaction takes PostgreSQL's database-wide notify lock at the commit. Measured with 16 clients
    inserting: 4,200 commits/s with the NOTIFY inside, 9,700 with it after the commit, 14,200 without.
    """
    for queue_name, jobs in Counter(queue_names).items():
        _after_commit(Notification(store.alias, QUEUED_CHANNEL, queue_name, jobs, store.send))


def wake_supervisors(store: "Store", delays: Iterable[float]) -> None:
    """If a job is due soon, notify the supervisors after the commit. `delays`: the seconds until each job is due."""
    if any(0 < delay < SOON for delay in delays):
        notify_supervisors(store, SCHEDULED_PAYLOAD)


def notify_supervisors(store: "Store", payload: str) -> None:
    """Notify the supervisors after the commit, with one of the payloads for supervisors."""
    _after_commit(Notification(store.alias, SUPERVISORS_CHANNEL, payload, send=store.send))


def notify_of_keys(store: "Store", gate: str, keys: Iterable[str]) -> None:
    """Notify the supervisors, after the commit, so that they check these keys of a gate.

    If the keys do not fit into a payload, the supervisors check all keys.
    """
    prefix = _keys_prefix(gate)
    remaining_keys, fitting_keys, size = sorted({*keys}), [], len(prefix)
    while remaining_keys and (size := size + len(remaining_keys[-1].encode()) + 1) <= MOST_PAYLOAD_BYTES:
        fitting_keys.append(remaining_keys.pop())
    if fitting_keys:
        notify_supervisors(store, prefix + "\n".join(fitting_keys))
    if remaining_keys:
        notify_supervisors(store, GATES_PAYLOAD)


def _keys_prefix(gate: str) -> str:
    """The beginning of a payload that lists keys of this gate. The keys follow, one per line."""
    return f",{gate} "


def keys_in(payloads: Iterable[str], gate: str) -> set[str]:
    """The keys of this gate that the payloads list."""
    prefix = _keys_prefix(gate)
    key_lists = [payload.removeprefix(prefix) for payload in payloads if payload.startswith(prefix)]
    return {key for key_list in key_lists for key in key_list.split("\n")}


def _after_commit(notification: Notification) -> None:
    connection = connections[notification.database]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        notification()  # without `atomic`, Django calls no on-commit hooks
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Notification) and hook == notification:
            hook.jobs += notification.jobs
            return
    transaction.on_commit(notification, using=notification.database, robust=True)
