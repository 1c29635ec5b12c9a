"""Databases that are not where the settings of the suite say: behind a proxy, or at an address where nobody listens."""

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
    """Have every thread of this process reach the database at this address; an unknown alias is made, as `like`.

    What the process remembers of databases that cannot be reached is forgotten before and after.
    """
    given, is_known = connections.settings, alias in connections.settings
    before = given[alias if is_known else like]
    changed = {**before, **address} | ({} if is_known else {"ENGINE": elsewhere.__name__})
    silence.avoided_until.clear()
    given[alias] = changed
    connections[alias].close()
    connections[alias].settings_dict = changed
    try:
        yield alias
    finally:
        wait_until(lambda: not is_read(alias), "no thread connects to it any more")
        connections[alias].close()
        if is_known:
            given[alias] = connections[alias].settings_dict = before
        else:
            del connections[alias]
            del given[alias]
        silence.avoided_until.clear()


def is_read(alias: str) -> bool:
    """Whether a thread of `console.at_once` reads this database, or tries to."""
    return any(each.name == f"read {alias}" for each in threading.enumerate())
