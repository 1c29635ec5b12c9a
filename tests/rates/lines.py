"""The log lines of rates."""

from django_skipqueue.parts.rates.events import queue_rated


def write_lines() -> None:
    queue_rated("mail", 0.02, "ann")
