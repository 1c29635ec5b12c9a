"""The log lines of limits."""

from django_skipqueue.parts.limits.events import queue_limited


def write_lines() -> None:
    queue_limited("mail", 4, "ann")
