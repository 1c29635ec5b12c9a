"""The log lines of rates."""

from django_skipqueue.parts.rates.queues import QueueRated


def write_lines() -> None:
    QueueRated("default", "mail", 0.02, "ann").write_lines()
