"""The log line of the archive, for the tests of the reference."""

from django_skipqueue.parts.archive import move


def write_lines() -> None:
    move.partitions_not_made(OSError("no"), 60.0)
