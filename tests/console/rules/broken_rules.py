"""Rules that take too long, or fail."""

from collections.abc import Iterator

from django_skipqueue.console.rules.rule import Finding
from django_skipqueue.queue.store import Store


def sleep_a_minute(store: Store) -> Iterator[Finding]:
    store.rows("SELECT pg_sleep(60)")
    yield from ()


def fail_with_sql_error(store: Store) -> Iterator[Finding]:
    store.rows("SELECT * FROM no_such_table")
    yield from ()
