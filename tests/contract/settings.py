"""The settings: their defaults, and the sentences of `manage.py check` about values that are not allowed."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import run_checks
from django.test import override_settings

from django_skipqueue.integrations.django_tasks.backend import SkipQueueBackend

from .adapter import BACKEND_OPTIONS, CARRIER_OPTIONS, SETTINGS


class Wrong:
    """A value that no setting may have."""

    def __repr__(self) -> str:
        return "…"


X = Wrong()
NESTED: list[dict[str, Any]] = [
    {"?": X},
    {"ALERTS": {}},
    {"CARRIERS": {"?": {}, "celery": dict.fromkeys((*CARRIER_OPTIONS, "?"), X)}},
    {"CARRIERS": {"celery": {"APP": "shop.celery", "QUEUES": {"mail": X, "pdf": "amq.pdf"}}, "sms": X}},
    {"DATABASE": "a", "DATABASES": ("b", "b"), "RETIRING": ("b",)},
    {"LINKS": {"a": "a", "b": "https://b/{?}", "c": "https://c/{", " ": X}},
    {"PERIODIC": {"a": {"?": X}, "b": X}},
    {"PLACEMENT": "spread"},
    {"QUEUES": {"mail": {"?": X, "concurrency": X, "rate": X}, "a,b": X}},
    {"SEARCHABLE": {"shop.jobs.send": X}},
    {"RETENTION": {"?": X, "completed": X}},
    {"RULES": {"?": 1, "late-worker": 1, "no-free-slot": {"mail": 1}, "paused-queue": {"mail": X}}},
    {"RULES": {"?": 1, "late-worker": 1, "no-free-slot": {"mail": 1}}},
]
"""Values of SKIPQUEUE with mistakes inside of nested values."""


def settings() -> Iterator[str]:
    """A line for each setting, for each key below it, and for each sentence about a value that is not allowed."""
    yield from (f"SKIPQUEUE[{key!r}]: {default}" for key, default in SETTINGS.items())
    yield from (f"SKIPQUEUE['CARRIERS'][…][{key!r}]: {default}" for key, default in CARRIER_OPTIONS.items())
    yield from (f"TASKS[…]['OPTIONS'][{key!r}]: {default}" for key, default in BACKEND_OPTIONS.items())
    for given in [*({key: X} for key in SETTINGS), *NESTED]:
        with override_settings(SKIPQUEUE=given):
            found = run_checks(tags=["django_skipqueue"])
            yield from (str(problem.msg) for problem in found if problem.id in ("skipqueue.E001", "skipqueue.E012"))
    for key in ("?", *BACKEND_OPTIONS):
        backend = SkipQueueBackend("default", {"OPTIONS": {key: X}})
        yield from (str(problem.msg) for problem in backend.check())
