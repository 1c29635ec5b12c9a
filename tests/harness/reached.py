"""Lets a test reach a database at another address, such as a proxy, or a port on which no server listens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_skipqueue.queue import silence

from ..app.waiting import wait_until
from . import elsewhere

NOBODY: dict[str, Any] = {"HOST": "127.0.0.1", "PORT": "1", "OPTIONS": {}}
"""An address at which no server listens."""


@contextmanager
def reached_at(alias: str, address: dict[str, Any], *, like: str = "other") -> Iterator[str]:
    """Let every thread of this process reach the database at this address. A new alias gets the settings of `like`.

    For a while, the process avoids a database that it could not reach. Before and after the block, it forgets this.
    """
    databases, is_known = connections.settings, alias in connections.settings
    before = databases[alias if is_known else like]
    changed = {**before, **address} | ({} if is_known else {"ENGINE": elsewhere.__name__})
    silence.avoided_until.clear()
    databases[alias] = changed
    connections[alias].close()
    connections[alias].settings_dict = changed
    try:
        yield alias
    finally:
        wait_until(lambda: not is_read(alias), "no thread connects to it any more")
        connections[alias].close()
        if is_known:
            databases[alias] = connections[alias].settings_dict = before
        else:
            del connections[alias]
            del databases[alias]
        silence.avoided_until.clear()


def is_read(alias: str) -> bool:
    """Whether a thread that the console has started reads this database, or tries to connect to it."""
    return any(thread.name == f"read {alias}" for thread in threading.enumerate())
