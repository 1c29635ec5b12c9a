"""The pages of the health port, from what supervisors and their workers show in memory. Sends no statement.

Used by the thread of the health port, while a control loop's thread may change what is read here.
"""

import time
from collections.abc import Callable, Sequence

from ..values.exposition import CONTENT_TYPE, exposition
from .http_exchange import Page
from .metrics import figures
from .state import DatabaseState, SupervisorState


class Health:
    """One for each `runworker`."""

    def __init__(self, states: Callable[[], Sequence[SupervisorState]], *, names_databases: bool = False) -> None:
        """`states`: of the supervisors that are to run. `names_databases`: say for each line whose it is."""
        self._states = states
        self._names_databases = names_databases

    def page(self, path: str) -> Page | None:
        states = self._states()
        if path == "/healthz":
            problems = self._problems(_why_unhealthy, states)
            return _page(problems, is_ok=not problems)
        if path == "/readyz":
            problems = self._problems(_why_not_ready, states)
            return _page(problems, is_ok=len(problems) < len(states))
        if path == "/metrics":
            found = figures(states, names_databases=self._names_databases)
            return Page("200 OK", exposition(found), CONTENT_TYPE)
        return None

    def _problems(self, why: Callable[[SupervisorState], str], states: Sequence[SupervisorState]) -> list[str]:
        found = [(state.alias, " ".join(problem.split())) for state in states if (problem := why(state))]
        return [f"{alias}: {problem}" if self._names_databases else problem for alias, problem in found]


def _why_unhealthy(state: SupervisorState) -> str:
    """Why a restart of the container would help; empty: it would not. A lost database is no reason."""
    if state.is_late:
        return f"the supervisor's control loop has not turned for {time.monotonic() - state.turned_at:.0f} s"
    if frozen := [worker.name for worker in state.workers if worker.is_frozen]:
        return f"frozen, and being replaced: {', '.join(frozen)}"
    return ""


def _why_not_ready(state: SupervisorState) -> str:
    if state.database is DatabaseState.LOST:
        return "the database cannot be reached"
    if not state.has_worker:
        return "no worker process runs"
    return ""


def _page(problems: Sequence[str], *, is_ok: bool) -> Page:
    lines = ["ok"] * is_ok + [*problems]
    return Page("200 OK" if is_ok else "503 Service Unavailable", "".join(f"{line}\n" for line in lines))
