"""The log lines of limits."""

from django_skipqueue.parts.limits.queues import QueueLimited


def write_lines() -> None:
    QueueLimited("default", "mail", 4, "ann").write_lines()
