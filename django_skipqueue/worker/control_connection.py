"""The only database connection of a control loop. It is in autocommit mode, and is reopened when it breaks.

It replaces Django's connection of its thread, so that all functions which take a `Store` use it in this thread. In the
main thread of a process no statement waits forever: if the server does not answer, an alarm cuts the connection, which
then counts as broken.
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
from ..queue.session import bound_transactions, drop_plans, lock_timeout, plan_statements_once
from ..queue.store import Store
from ..values.records import NEVER
from .own_connections import guard, own_connection

FIRST_REOPEN_DELAY, LONGEST_REOPEN_DELAY = 0.25, 10.0
"""The seconds until a broken connection is opened again. The delay doubles with each successive failure."""

ANSWER_TIME = 10.0
"""If the server does not answer for this many seconds, the alarm cuts the connection. The server's own timeouts are
shorter. So as long as the server can be reached, they take effect first."""

NOT_PREPARED = ("26000", "42P05")
"""The SQLSTATEs of a prepared statement that is missing, or exists already, because a pooler shares the session."""

SLOW_EXCHANGE_SECONDS = 0.005
"""If a prepared exchange takes more than this many seconds, its plans may be from a time when the table was smaller."""

PLANS_KEPT = 1.0
"""The least number of seconds for which plans are kept."""

STATEMENT_TIMEOUT = "57014"
"""The SQLSTATE of a statement that the server has cancelled."""

TRANSACTION_TIME = 20.0
"""The server ends a transaction of a control connection after this many seconds, longer than two statements may
take."""

OPENING_TIME = 120.0
"""How many seconds opening a connection may take. It is long, because no timeout applies to the DNS lookup."""

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
        """who: the name of the process in log lines. session_name: the session's `application_name`.

        before_statements: called with the most seconds that the next statements may take.
        """
        self.is_broken = False
        """Whether the last statements failed."""
        self.timed_out = False
        """Whether the last statements failed because they took too long, and not because the database was
        unreachable."""
        self.retry_at = 0.0
        """When to try again after a failure, by the monotonic clock."""
        self.on_broken: Callable[[], object] = lambda: None
        """Called after the connection broke and the error was handled."""
        self.on_options_taken: Callable[[], object] = lambda: None
        """Called after statements have succeeded on a connection that has the server timeouts which `guard` sets."""
        self.listens = False
        """Whether LISTEN was sent on this connection."""
        self._store = store
        self._before_statements = before_statements
        self.payloads: list[str] = []
        self._prepares = False
        self._may_prepare = True
        self.planned_at = 0.0  # when PostgreSQL was last made to plan the statements
        self.probe = NotificationProbe(store.alias, who)
        self._label = who
        self._failures = 0
        self._has_timed_out = False
        self._cut_at = NEVER  # when the alarm cuts the connection, by the monotonic clock
        self._timeouts = True  # whether the server accepts its timeouts as options of the connection
        self._are_checked = False  # whether `check_timeouts` has sent its statement
        self._is_bounded = False  # whether `_bound_transactions` was called on this connection
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
        """Run a block of statements. A database error is not raised: it closes the connection, and sets `retry_at`.

        But if `refused` is given, and the connection is still usable after the error, the connection stays open, and
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
            if self.fileno() is not None:  # otherwise the block has sent no statement
                self._succeeded()

    def listen(self, *, as_supervisor: bool = False) -> bool:
        """Send LISTEN for queued jobs, and as a supervisor also for supervisors. Returns whether LISTEN was sent.

        Later calls send no LISTEN, but a probe, which tests whether notifications arrive.
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
        """Whether a notification has arrived, which proves that no pooler is between this process and the server."""
        return self.probe.has_arrived

    def prepare_statements(self) -> None:
        """Prepare the statements of exchanges from now on, unless this has failed before. Requires `is_session`."""
        if self._may_prepare and not self._prepares:
            self._prepares = True
            self._bound_transactions()
            plan_statements_once(self._store)  # by default, PostgreSQL would plan a claim in each of the first calls
            self.wrapper.connection.prepare_threshold = 0
            self.planned_at = time.monotonic()

    def _bound_transactions(self) -> None:
        """Make the server end a transaction that takes too long. Requires `is_session`, and PostgreSQL 17."""
        if not self._is_bounded and self.wrapper.pg_version >= 170_000:
            bound_transactions(self._store, TRANSACTION_TIME)
        self._is_bounded = True

    def check_timeouts(self) -> None:
        """Log once if a pooler has ignored the server timeouts without an error. The first call sends a statement."""
        if self._timeouts and not self._are_checked:
            self._are_checked = True
            if lock_timeout(self._store) == "0":
                liveness_logs.timeouts_refused(self._label, "a pooler ignores the startup parameter options")

    def note_exchange(self, seconds: float) -> None:
        """If an exchange took long, make PostgreSQL plan the statements again, because the table may have grown.

        A plan for a small table might read a large table whole. If the exchange took long for another reason, planning
        again costs two milliseconds per second.
        """
        now = time.monotonic()
        if self._prepares and seconds > SLOW_EXCHANGE_SECONDS and now - self.planned_at > PLANS_KEPT:
            self.planned_at = now
            drop_plans(self._store)

    def notified(self) -> list[str]:
        """Return the payloads of the notifications since the last call. Does not wait.

        Call this before each sleep, because a notification that arrived together with the result of a statement does
        not make the socket readable.
        """
        with self.wrapper.wrap_database_errors:
            pgconn = self.wrapper.connection.pgconn
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                self.payloads.append(notification.extra.decode())
        payloads, self.payloads = self.payloads, []
        return self.probe.without_probes(payloads)

    def fileno(self) -> int | None:
        session = self.wrapper.connection
        return None if session is None or session.closed else session.fileno()

    def close(self) -> None:
        """Close the connection. The next statement opens another connection."""
        self.listens = self._prepares = self._is_bounded = False
        self.probe.interrupt()
        self.wrapper.close()

    def _note(self, notification: Notify) -> None:
        self.payloads.append(notification.payload)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Make an alarm cut the connection if the block takes too long, because this thread waits for the socket."""
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
        """Allow the next statements of the block to take this many seconds."""
        self._before_statements(seconds)
        if self._is_watched:
            self._set_alarm(seconds)

    def _set_alarm(self, seconds: float) -> None:
        self._cut_at = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)

    def _cut_if_late(self) -> None:
        """Handle the alarm by shutting down the socket. Closing the socket would not end a wait for it."""
        seconds_left = self._cut_at - time.monotonic()
        if seconds_left > 0:  # a task has set its own alarm, which has replaced our alarm
            if seconds_left < NEVER:
                signal.setitimer(signal.ITIMER_REAL, seconds_left, 1.0)
            return
        socket_number = self.fileno()
        if socket_number is not None:
            self._has_timed_out = True
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(socket_number)) as stalled:
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
        # After a failover this server may be a standby, and a new connection may lead to the new primary.
        return getattr(error.__cause__, "sqlstate", None) not in (errors.ReadOnlySqlTransaction.sqlstate, *NOT_PREPARED)

    def _failed(self, error: Error) -> None:
        """Close the connection after this error, and set when to open it again."""
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
        longest_delay = min(LONGEST_REOPEN_DELAY, FIRST_REOPEN_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest_delay / 2, longest_delay)  # noqa: S311 (spreads load, guards nothing)
        self.is_broken = True
        self.retry_at = time.monotonic() + delay
        liveness_logs.database_lost(self._label, error, delay)


class NotificationProbe:
    """Checks once for each connection whether notifications arrive, because a pooler in transaction mode loses them.

    The probe is a NOTIFY on a second connection, while the listening connection sends nothing. Otherwise the
    notification might arrive by chance, together with the answer to a statement of the listening connection.
    """

    def __init__(self, database: str, who: str) -> None:
        self._database = database
        self._label = who
        self._payload = f"{PROBE_PREFIX}{uuid.uuid4()}"
        self.has_arrived = False
        self._sent_at = 0.0
        self.is_settled = False  # whether we know if notifications arrive
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
        """Note that the connection is closed. The next connection may go through a pooler, so it is probed again."""
        self._sent_at = 0.0
        self.is_settled = self.has_arrived = False

    def without_probes(self, payloads: list[str]) -> list[str]:
        """Return the payloads that are not probes of any process. Notes whether this process's probe has arrived."""
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
            self.is_settled = True  # as the server accepts no more connections, we can neither test nor log a result
        finally:
            connection.close()
