"""Functions for the monthly partitions of the queue's tables. The partitions outlive the test that makes them."""

from django.db import connections

from django_skipqueue.queue.store import Store
from django_skipqueue.values.part import installed_parts

PARTITIONS = """
SELECT inhrelid::regclass::text
FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent
WHERE relname LIKE 'skipqueue_%' AND relkind = 'p'
ORDER BY 1
"""


def tables(using: str = "default") -> list[str]:
    with connections[using].cursor() as cursor:
        cursor.execute(PARTITIONS)
        return [name for (name,) in cursor.fetchall()]


def partitions(using: str = "default") -> list[str]:
    """The months that have a partition, such as 2026_11."""
    return [name[-len("2026_11") :] for name in tables(using)]


def drop_partitions(using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        for name in tables(using):
            cursor.execute(f"DROP TABLE {name}")


def make_partitions() -> None:
    """Make the partitions that a prune needs."""
    for part in installed_parts():
        if part.before_prune:
            part.before_prune(Store.default())()
