"""The one connection of a control loop: in autocommit, in no pool, and reopened with a back-off when it breaks.

Invariant: a function that takes a `Store` uses this connection and no other, in the thread that opened the connection.
In the main thread of a process no statement waits for ever: an alarm cuts a connection that gets no answer, and the
connection then counts as broken.
"""

import contextlib
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, OperationalError, connections
from psycopg import Notify, errors
from psycopg.pq import TransactionStatus

from ..events import liveness_logs
from ..events.log_format import in_a_line
from ..queue.notify import PROBE_PREFIX, echo, listen, listen_as_supervisor, unlisten
from ..queue.session import bound_transactions, drop_plans, lock_timeout, plan_once
from ..queue.store import Store
from ..values.records import NEVER
from .own_connections import guard, own_connection

FIRST_REOPEN_DELAY, LONGEST_REOPEN_DELAY = 0.25, 10.0
"""Seconds until a broken connection is opened again. The delay doubles with each failure in a row."""

ANSWER_TIME = 10.0
"""Seconds without an answer after which the alarm cuts a connection. The timeouts of the server are shorter: while the
server can be reached, they take effect first."""

NOT_PREPARED = ("26000", "42P05")
"""The SQLSTATEs of a prepared statement that is gone or that exists already: a pooler shares the session."""

SLOW_EXCHANGE_SECONDS = 0.005
"""Seconds. If a prepared exchange takes longer, its plans may be from a time when the table was smaller."""

PLANS_KEPT = 1.0
"""Seconds for which plans are kept at least."""

STATEMENT_TIMEOUT = "57014"
"""The SQLSTATE of a statement that the server has cancelled."""

TRANSACTION_TIME = 20.0
"""Seconds after which the server ends a transaction of a control connection: longer than two statements may take."""

OPENING_TIME = 120.0
"""Seconds that opening a connection may take: no timeout covers the lookup of the server's address."""

ECHO_TIME = 5.0
"""Seconds within which the notification of a probe must arrive."""


class ControlConnection:
    """Replaces Django's connection of this thread to the queue's database."""

    def __init__(
        self,
        store: Store,
        *,
        who: str,
        session_name: str | None = None,
        before_statements: Callable[[float], object] = lambda _: None,
    ) -> None:
        """session_name: the session's `application_name`, see `values.records.session_name`.

        before_statements: called with the longest time, in seconds, that the next statements may take.
        """
        self.is_broken = False
        """Whether the last statements failed."""
        self.timed_out = False
        """Whether the last statements failed because an answer took too long, not because the database was gone."""
        self.retry_at = 0.0
        """When to try again after a failure, in monotonic seconds."""
        self.on_broken: Callable[[], object] = lambda: None
        """Called after the connection broke and the error was handled."""
        self.on_options_taken: Callable[[], object] = lambda: None
        """Called after statements have succeeded on a connection that has the options of `guard`."""
        self.listens = False
        self._store = store
        self._before_statements = before_statements
        self.payloads: list[str] = []
        self._prepares = False
        self._may_prepare = True
        self.planned_at = 0.0
        self.probe = NotificationProbe(store.alias, who)
        self._label = who
        self._failures = 0
        self._has_timed_out = False
        self._cut_at = NEVER  # in monotonic seconds
        self._timeouts = True
        self._are_checked = False
        self._is_bounded = False
        connections[store.alias] = own_connection(store.alias)
        self.wrapper: Any = connections[store.alias]
        options = self.wrapper.settings_dict["OPTIONS"]
        if session_name:
            options["application_name"] = session_name
        options.setdefault("fallback_application_name", f"skipqueue {who}")
        guard(self.wrapper, store.alias)
        self._is_watched = threading.current_thread() is threading.main_thread()
        if self._is_watched:
            signal.signal(signal.SIGALRM, lambda *_: self._cut_if_late())

    @contextmanager
    def handling_errors(self, *, refused: Callable[[Error], object] | None = None) -> Iterator[None]:
        """Run a block of statements. A database error closes the connection, sets `retry_at`, and is not raised.

        If the connection is still usable after an error, and `refused` is given, the connection stays open and
        `refused` is called with the error.
        """
        self._before_statements(OPENING_TIME if self.fileno() is None else ANSWER_TIME)
        try:
            with self._watched():
                yield
        except Error as error:
            self.timed_out = self._has_timed_out or getattr(error.__cause__, "sqlstate", None) == STATEMENT_TIMEOUT
            if refused is not None and self._is_good_after(error):
                self._succeeded()
                refused(error)
            else:
                self._failed(OperationalError(f"no answer for {ANSWER_TIME:g} s") if self._has_timed_out else error)
                self.on_broken()
        else:
            if self.fileno() is not None:  # else the block sent no statement
                self._succeeded()

    def listen(self, *, as_supervisor: bool = False) -> bool:
        """Send LISTEN for queued jobs, and for a supervisor its own channel too. Returns whether LISTEN was sent.

        Later calls probe whether notifications arrive.
        """
        if self.listens:
            self.probe.check()
            if self.is_session:
                self._bound_transactions()
            return False
        listen(self._store)
        if as_supervisor:
            listen_as_supervisor(self._store)
        self.wrapper.connection.add_notify_handler(self._note)
        self.listens = True
        return True

    def unlisten(self) -> None:
        if self.listens:
            self.listens = False
            self.wrapper.connection.remove_notify_handler(self._note)
            unlisten(self._store)

    @property
    def is_session(self) -> bool:
        """Whether a notification has proved that no pooler is between this process, or its workers, and the server."""
        return self.probe.has_arrived

    def prepare_statements(self) -> None:
        """Prepare the statements of exchanges from now on, unless preparing has failed before. Only for a session."""
        if self._may_prepare and not self._prepares:
            self._prepares = True
            self._bound_transactions()
            plan_once(self._store)
            self.wrapper.connection.prepare_threshold = 0
            self.planned_at = time.monotonic()

    def _bound_transactions(self) -> None:
        """Have the server end a transaction that takes too long. Only for a session; from PostgreSQL 17 on."""
        if not self._is_bounded and self.wrapper.pg_version >= 170_000:
            bound_transactions(self._store, TRANSACTION_TIME)
        self._is_bounded = True

    def check_timeouts(self) -> None:
        """Log once if a pooler has dropped the timeouts without an error. The first call sends a statement."""
        if self._timeouts and not self._are_checked:
            self._are_checked = True
            if lock_timeout(self._store) == "0":
                liveness_logs.timeouts_refused(self._label, "a pooler ignores the startup parameter options")

    def note_exchange(self, seconds: float) -> None:
        """Have the prepared statements planned again if an exchange took long: the table may have grown since.

        A plan made for a small table reads all of a large table. If the exchange took long for another reason, planning
        again costs two milliseconds a second.
        """
        now = time.monotonic()
        if self._prepares and seconds > SLOW_EXCHANGE_SECONDS and now - self.planned_at > PLANS_KEPT:
            self.planned_at = now
            drop_plans(self._store)

    def notified(self) -> list[str]:
        """The payloads of the notifications since the last call. Does not wait.

        Call it before a sleep: a notification that came with the answer of a statement does not make the socket
        readable.
        """
        with self.wrapper.wrap_database_errors:
            pgconn = self.wrapper.connection.pgconn
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                self.payloads.append(notification.extra.decode())
        payloads, self.payloads = self.payloads, []
        return self.probe.without_probes(payloads)

    def fileno(self) -> int | None:
        raw = self.wrapper.connection
        return None if raw is None or raw.closed else raw.fileno()

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        self.listens = self._prepares = self._is_bounded = False
        self.probe.interrupt()
        self.wrapper.close()

    def _note(self, notification: Notify) -> None:
        self.payloads.append(notification.payload)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Have an alarm cut the connection if the block takes too long: the thread itself waits for the socket."""
        self._has_timed_out = False
        if not self._is_watched:
            yield
            return
        self._set_alarm(ANSWER_TIME)
        try:
            yield
        finally:
            self._cut_at = NEVER
            signal.setitimer(signal.ITIMER_REAL, 0)

    def allow(self, seconds: float) -> None:
        """Let the next statements of the block take this long."""
        self._before_statements(seconds)
        if self._is_watched:
            self._set_alarm(seconds)

    def _set_alarm(self, seconds: float) -> None:
        self._cut_at = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)

    def _cut_if_late(self) -> None:
        """Handle the alarm: shut the socket down. To close the socket would not end a wait for it."""
        left = self._cut_at - time.monotonic()
        if left > 0:  # a task has set this alarm, and has replaced ours
            if left < NEVER:
                signal.setitimer(signal.ITIMER_REAL, left, 1.0)
            return
        file = self.fileno()
        if file is not None:
            self._has_timed_out = True
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(file)) as stalled:
                stalled.shutdown(socket.SHUT_RDWR)

    def _succeeded(self) -> None:
        if self._failures:
            liveness_logs.database_back(self._label)
        self._failures = 0
        self.is_broken = False
        self.retry_at = 0.0
        if self._timeouts:
            self.on_options_taken()
            self.on_options_taken = lambda: None

    def _is_good_after(self, error: Error) -> bool:
        """Whether the connection is still usable after an error, and leads to a server that accepts writes."""
        raw = self.wrapper.connection
        if self._has_timed_out or raw is None or raw.closed or raw.info.transaction_status != TransactionStatus.IDLE:
            return False
        # After a failover this server is a standby: another connection may lead to the new primary.
        return getattr(error.__cause__, "sqlstate", None) not in (errors.ReadOnlySqlTransaction.sqlstate, *NOT_PREPARED)

    def _failed(self, error: Error) -> None:
        self.close()
        if getattr(error.__cause__, "sqlstate", None) in NOT_PREPARED:
            self._may_prepare = False
        if self._timeouts and "unsupported startup parameter" in str(error):
            self._timeouts = False
            guard(self.wrapper, self._store.alias, timeouts=False)
            self.is_broken = True
            self.retry_at = time.monotonic() + FIRST_REOPEN_DELAY
            liveness_logs.timeouts_refused(self._label, in_a_line(error))
            return
        self._failures += 1
        longest = min(LONGEST_REOPEN_DELAY, FIRST_REOPEN_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
        self.is_broken = True
        self.retry_at = time.monotonic() + delay
        liveness_logs.database_lost(self._label, error, delay)


class NotificationProbe:
    """Checks once for each connection whether notifications arrive: a pooler in transaction mode loses them.

    The probe goes through a connection of its own, while the listening connection sends nothing. Behind such a pooler,
    a notification may arrive by chance with the answer of a statement of the listening connection.
    """

    def __init__(self, database: str, who: str) -> None:
        self._database = database
        self._label = who
        self._payload = f"{PROBE_PREFIX}{uuid.uuid4()}"
        self.has_arrived = False
        self._sent_at = 0.0
        self.is_settled = False
        self._has_warned = False

    def check(self) -> None:
        """Send the probe, and log a warning if it has not arrived in time."""
        if self.is_settled:
            return
        if not self._sent_at:
            self._send()
        elif time.monotonic() - self._sent_at > ECHO_TIME:
            self.is_settled = True
            if not self._has_warned:
                liveness_logs.notifications_unavailable(self._label)
            self._has_warned = True

    def interrupt(self) -> None:
        """Note that the connection is closed. The next one may be a pooler's, so the next check sends a probe."""
        self._sent_at = 0.0
        self.is_settled = self.has_arrived = False

    def without_probes(self, payloads: list[str]) -> list[str]:
        """The payloads that are no probes, neither of this process nor of another."""
        if self._payload in payloads:
            self.is_settled = self.has_arrived = True
        return [payload for payload in payloads if not payload.startswith(PROBE_PREFIX)]

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        connection = own_connection(self._database)
        guard(connection, self._database, timeouts=False)
        try:
            echo(connection, self._payload)
        except OperationalError:
            self.is_settled = True  # the server accepts no more connections, so nothing is known, nor logged
        finally:
            connection.close()
