"""Who waits for a lock on the queue's tables, and for whom."""

from collections.abc import Iterator

from django.utils.translation import gettext

from ...models.expressions import table_names
from ...queue.store import Store
from ..durations import span
from . import sql
from .finding import Finding, Severity, named, statement, without_values

LONG_WAIT, VERY_LONG_WAIT = 2.0, 30.0
"""Seconds for which a session may wait for a lock before it is a warning, and before it is critical."""


def lock_waits(store: Store) -> Iterator[Finding]:
    for row in store.rows(sql.LOCK_WAITS, {"tables": table_names(), "seconds": LONG_WAIT}):
        pid, age, application, query, *blocker = row
        waits = gettext("Session %(pid)s (%(application)s) has waited for %(age)s, with: %(query)s") % {
            "pid": pid,
            "application": named(application),
            "age": span(age),
            "query": without_values(query),
        }
        blocks, command = _blocked_by(*blocker)
        yield Finding(
            "lock-waits",
            Severity.CRITICAL if age >= VERY_LONG_WAIT else Severity.WARNING,
            gettext("A session waits for a lock on the queue's tables"),
            f"{waits}. {blocks}",
            gettext("End the session that blocks, unless it will be ready soon."),
            command,
        )


def _blocked_by(pid: int, application: str, state: str, query: str) -> tuple[str, str]:
    if not pid:
        return gettext("A prepared transaction blocks it."), "SELECT * FROM pg_prepared_xacts;"
    values = {"pid": pid, "application": named(application), "state": state or "?", "query": without_values(query)}
    blocks = gettext("Session %(pid)s (%(application)s, %(state)s) blocks it. Its last statement: %(query)s")
    return blocks % values, statement("SELECT pg_terminate_backend({pid});", pid=pid)
