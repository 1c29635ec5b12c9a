"""The log line of the archive."""

from django_skipqueue.parts.archive import logs


def write_lines() -> None:
    logs.partitions_not_made(OSError("no"), 60.0)
