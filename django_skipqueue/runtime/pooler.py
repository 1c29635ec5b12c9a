"""Finds out whether a pooler in transaction mode is between this process and the server."""

from typing import Any

from ..store import Store
from .control_connection import NotificationProbe
from .own_connections import dedicated_connection, guard

ECHO_SECONDS = 1.0
"""Seconds within which the notification of the probe must arrive."""


def pools_transactions(alias: str) -> bool:
    """Whether each transaction of a connection to this database may get another session. Takes a second, if so.

    A pooler tells its clients process ids of its own. In session mode notifications arrive nevertheless.
    """
    with dedicated_connection(alias) as connection:
        guard(connection, alias, timeouts=False)
        store = Store(alias)
        pid = store.backend_pid()
        raw: Any = connection.connection
        return pid != raw.info.backend_pid and not _notification_arrives(store, raw)


def _notification_arrives(store: Store, raw: Any) -> bool:
    """Whether a notification for this connection arrives while it sends nothing."""
    probe = NotificationProbe(store.alias, "pooler probe")
    store.listen()
    try:
        probe.check()
        for notification in raw.notifies(timeout=ECHO_SECONDS):
            probe.without_probes([notification.payload])
            if probe.has_arrived:
                break
    finally:
        store.unlisten()
    return probe.has_arrived
