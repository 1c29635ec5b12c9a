"""The pages of the health port, from what the supervisor and its workers show in memory. Sends no statement.

Used by the thread of the health port, while the control loop's thread may change what is read here.
"""

import time
from collections.abc import Callable, Sequence

from ..values.exposition import CONTENT_TYPE, exposition
from .http_exchange import Page
from .metrics import figures
from .process import WorkerProcess
from .pulse import Pulse
from .watchdog import Watchdog


class Health:
    """One for each supervisor."""

    def __init__(
        self,
        processes: Sequence[WorkerProcess],
        *,
        pulse: Pulse,
        watchdog: Watchdog,
        has_database: Callable[[], bool],
    ) -> None:
        """`has_database` returns whether the supervisor's last statement succeeded."""
        self._processes = processes
        self._pulse = pulse
        self._watchdog = watchdog
        self._has_database = has_database

    def page(self, path: str) -> Page | None:
        """The page at this path; `None`: there is none."""
        if path == "/healthz":
            return _ok_unless(self._why_unhealthy())
        if path == "/readyz":
            return _ok_unless(self._why_not_ready())
        if path == "/metrics":
            found = figures(self._processes, turned_at=self._pulse.turned_at, has_database=self._has_database())
            return Page("200 OK", exposition(found), CONTENT_TYPE)
        return None

    def _why_unhealthy(self) -> str:
        """Why a restart of the container would help; empty: it would not. A lost database is no reason."""
        now = time.monotonic()
        if self._pulse.is_late(now):
            return f"the supervisor's control loop has not turned for {now - self._pulse.turned_at:.0f} s"
        if frozen := self._watchdog.frozen:
            return f"frozen, and being replaced: {', '.join(frozen)}"
        return ""

    def _why_not_ready(self) -> str:
        if not self._has_database():
            return "the database cannot be reached"
        if not any(process.has_started for process in self._processes):
            return "no worker process runs"
        return ""


def _ok_unless(problem: str) -> Page:
    """`ok`, or one line with the problem."""
    line = " ".join(problem.split())
    return Page("503 Service Unavailable", f"{line}\n") if line else Page("200 OK", "ok\n")
