"""Rules that take too long, or fail."""

from collections.abc import Iterator

from django_skipqueue.console.rules.rule import Finding
from django_skipqueue.queue.store import Store


def sleeps(store: Store) -> Iterator[Finding]:
    store.rows("SELECT pg_sleep(60)")
    yield from ()


def fails(store: Store) -> Iterator[Finding]:
    store.rows("SELECT * FROM no_such_table")
    yield from ()
