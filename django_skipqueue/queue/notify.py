"""Notify workers of queued jobs, and supervisors of scheduled jobs and paused queues; listen for notifications.

A notification is sent after the commit of the change that it announces.
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

# enqueue, settle, retry, run_now, release, recover, admit, resume: notifies the workers that listen.
# enqueue, settle, retry, postpone: notifies the supervisors of a scheduled job that is due soon.
# pause, resume, a request of a worker: notifies the supervisors.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)
"""

# The NOTIFY that is sent after a commit, in a transaction of its own. Its commit does not wait for the disk: a crash of
# the server that loses the notification also disconnects everyone who listens.
NOTIFY_ALONE = """
SELECT pg_notify(%(channel)s, %(payload)s)
FROM set_config('synchronous_commit', 'off', true)
"""

# supervisor, and a worker whose supervisor is silent: to be notified when a queue gets jobs. One channel for all
# queues; the payload has the queue's name and the number of jobs.
LISTEN = "LISTEN skipqueue"

# worker whose supervisor is back: to get no more notifications.
UNLISTEN = "UNLISTEN *"

# supervisor: to be notified when a job is scheduled that is due before the next poll, when a queue was paused or
# resumed, and when something is requested of a worker. The payload says which.
LISTEN_AS_SUPERVISOR = "LISTEN skipqueue_supervisors"


QUEUED_CHANNEL, SUPERVISORS_CHANNEL = "skipqueue", "skipqueue_supervisors"
"""The channels for queued jobs, and for supervisors. `Notification.payload` and `jobs_in` describe payloads of jobs."""

SCHEDULED_PAYLOAD, QUEUES_PAYLOAD, WORKERS_PAYLOAD, GATES_PAYLOAD = "", ",queues", ",workers", ",gates"
"""The payloads for supervisors: a job is scheduled that is due soon; a queue was paused or resumed; something is
requested of a worker; a blocked job may be admitted. None is the name of a queue: no name is empty or has a comma."""

MOST_PAYLOAD_BYTES = 7_900
"""PostgreSQL takes less than 8,000."""

PROBE_PREFIX = ",probe "
"""The beginning of a payload that only tests whether notifications arrive."""

SOON = 2.0
"""Seconds between the polls of a supervisor for scheduled jobs: only a job that is due earlier needs a notification."""


def listen(store: "Store") -> None:
    store.execute(LISTEN)


def unlisten(store: "Store") -> None:
    store.execute(UNLISTEN)


def listen_as_supervisor(store: "Store") -> None:
    """Have PostgreSQL send the notifications for supervisors to this connection."""
    store.execute(LISTEN_AS_SUPERVISOR)


@dataclass
class Notification:
    """A NOTIFY to be sent. Equal notifications of one transaction are sent as one."""

    database: str
    channel: str
    subject: str
    """The name of the queue that got jobs, or one of the payloads for supervisors."""
    jobs: int = field(default=0, compare=False)
    """How many jobs the queue got, at most: a savepoint may be rolled back after its jobs were counted."""
    send: Send = field(default=send, compare=False)
    """Gets the event of a failure: in a control loop, no sink runs in its thread."""

    @property
    def payload(self) -> str:
        """The queue's name, followed by a comma and the number of jobs if there are several. No name has a comma."""
        return self.subject if self.jobs <= 1 else f"{self.subject},{self.jobs}"

    def __call__(self) -> None:
        """Send the notification now. An error is only logged: the job is committed, and a poll finds it."""
        connection = connections[self.database]
        try:
            alone = connection.get_autocommit() and not connection.in_atomic_block
            statement = NOTIFY_ALONE if alone else NOTIFY
            with connection.cursor() as cursor:
                cursor.execute(statement, {"channel": self.channel, "payload": self.payload})
        except Exception as error:
            self.send(NotifyFailed(self.database, self.subject if self.channel == QUEUED_CHANNEL else "", error))


def jobs_in(payload: str) -> tuple[str, int]:
    """The queue and the number of jobs that a payload names; no queue if it announces scheduled jobs, or is a probe.

    Whoever may connect to the database can send any payload. One without a valid number counts as one job.
    """
    queue_name, _, number = payload.partition(",")
    if len(queue_name.encode()) > MAX_KEY_BYTES:
        return "", 1
    return queue_name, int(number) if re.fullmatch("[1-9][0-9]{0,8}", number) else 1


def echo(connection: BaseDatabaseWrapper, payload: str) -> None:
    """Notify at once, on this connection, with a payload that names no queue: a test whether notifications arrive."""
    with connection.cursor() as cursor:
        cursor.execute(NOTIFY, {"channel": QUEUED_CHANNEL, "payload": payload})


def wake(store: "Store", queue_names: Iterable[str] | Mapping[str, int]) -> None:
    """Notify the workers of these queues after the caller's transaction is committed.

    `queue_names` has the name of the queue of each job, or the number of jobs by queue.
    A NOTIFY inside the transaction takes PostgreSQL's database-wide notify lock at the commit. Measured with 16 clients
    inserting: 4,200 commits/s with the NOTIFY inside, 9,700 with it after the commit, 14,200 without.
    """
    for queue_name, jobs in Counter(queue_names).items():
        _after_commit(Notification(store.alias, QUEUED_CHANNEL, queue_name, jobs, store.send))


def wake_supervisors(store: "Store", delays: Iterable[float]) -> None:
    """Notify the supervisors after the commit if a job is due soon. `delays`: the seconds until each job is due."""
    if any(0 < delay < SOON for delay in delays):
        notify_supervisors(store, SCHEDULED_PAYLOAD)


def notify_supervisors(store: "Store", payload: str) -> None:
    """Notify the supervisors after the commit, with one of the payloads for supervisors."""
    _after_commit(Notification(store.alias, SUPERVISORS_CHANNEL, payload, send=store.send))


def notify_of_keys(store: "Store", gate: str, keys: Iterable[str]) -> None:
    """Notify the supervisors after the commit that this gate may admit jobs of these keys.

    If the keys are too many for a payload, the supervisors check all keys.
    """
    prefix = _keys_prefix(gate)
    left, named, size = sorted({*keys}), [], len(prefix)
    while left and (size := size + len(left[-1].encode()) + 1) <= MOST_PAYLOAD_BYTES:
        named.append(left.pop())
    if named:
        notify_supervisors(store, prefix + "\n".join(named))
    if left:
        notify_supervisors(store, GATES_PAYLOAD)


def _keys_prefix(gate: str) -> str:
    """The beginning of the payload that names keys of this gate, one a line."""
    return f",{gate} "


def keys_in(payloads: Iterable[str], gate: str) -> set[str]:
    """The keys of this gate that the payloads name."""
    prefix = _keys_prefix(gate)
    named = [payload.removeprefix(prefix) for payload in payloads if payload.startswith(prefix)]
    return {key for keys in named for key in keys.split("\n")}


def _after_commit(notification: Notification) -> None:
    connection = connections[notification.database]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        notification()  # the caller manages the transaction by hand: there is no hook after its commit
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Notification) and hook == notification:
            hook.jobs += notification.jobs
            return
    transaction.on_commit(notification, using=notification.database, robust=True)
