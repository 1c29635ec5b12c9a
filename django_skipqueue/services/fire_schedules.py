"""Fires the schedules that are due, and keeps the rows of those in code and settings.

Invariant: any number of supervisors may do it at once. No code of the project's runs. An entry of code or settings has
a row in one database alone, that of its task's jobs, however many databases have supervisors.
"""

import time

from ..events import schedule_logs
from ..periodic.entry import Entry
from ..periodic.fire import Skip, fire, next_due
from ..periodic.registry import Problem, all_entries
from ..periodic.synchronise import CONFIRM_SECONDS, bring_back, synchronise
from ..runtime.service import Periodic
from ..store import Store

LONGEST_WAIT = 2.0
"""Seconds between two looks: somebody may add, change or resume a schedule."""

LOCKED_WAIT = 0.5
"""Seconds until the next look if a schedule is due, and another transaction has locked it."""

SKIP_SECONDS = 15.0
"""Seconds for which a schedule is skipped whose task this process does not know: another supervisor may know it."""

TAKEN = "a schedule of the admin has this name"

AT_ONCE = 20
"""Schedules that one run fires."""


class FireSchedules(Periodic):
    """Used by supervisors."""

    name = "schedules"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._confirm_at = 0.0
        self._has_started = False
        self._entries: list[Entry] | None = None
        self._problems: list[Problem] = []
        self._digests: list[str] = []
        self._skipped: dict[int, float] = {}  # until when, in monotonic seconds; by id

    def run(self, now: float) -> None:
        if now >= self._confirm_at:
            self._confirm()
        for _ in range(AT_ONCE):
            if not self._fire():
                break
        else:
            self.run_again_in(0.0)
            return
        self.run_again_in(self._wait())

    def _confirm(self) -> None:
        if self._entries is None:
            self._entries, self._problems = self._read()
        taken = synchronise(self._store, self._entries, has_started=self._has_started)
        if not self._has_started:
            for name, problem in [*self._problems, *((name, TAKEN) for name in taken)]:
                schedule_logs.schedule_unusable(name, problem)
        for name in bring_back(self._store):
            schedule_logs.schedule_brought_back(name)
        self._digests = [entry.digest for entry in self._entries]
        self._has_started = True
        self._confirm_at = time.monotonic() + CONFIRM_SECONDS

    def _read(self) -> tuple[list[Entry], list[Problem]]:
        """The entries of this database. Read once: a dataclass among the arguments may run code of the project's."""
        entries, problems = all_entries()
        return [entry for entry in entries if entry.database == self._store.alias], problems

    def _fire(self) -> bool:
        """Fire one. Returns whether there may be more."""
        now = time.monotonic()
        self._skipped = {id: until for id, until in self._skipped.items() if until > now}
        try:
            return fire(self._store, digests=self._digests, skipped=self._skipped)
        except Skip as skip:
            self._skipped[skip.schedule_id] = now + SKIP_SECONDS
            return True

    def _wait(self) -> float:
        """Seconds until the next look."""
        seconds = next_due(self._store, digests=self._digests, skipped=self._skipped)
        return LONGEST_WAIT if seconds is None else min(max(seconds, 0.0) or LOCKED_WAIT, LONGEST_WAIT)
