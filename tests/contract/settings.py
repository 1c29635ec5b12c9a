"""Lists the settings with their defaults, and the messages of `manage.py check` about values that are not allowed."""

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


WRONG = Wrong()
NESTED: list[dict[str, Any]] = [
    {"?": WRONG},
    {"ALERTS": {}},
    {"CARRIERS": {"?": {}, "celery": dict.fromkeys((*CARRIER_OPTIONS, "?"), WRONG)}},
    {"CARRIERS": {"celery": {"APP": "shop.celery", "QUEUES": {"mail": WRONG, "pdf": "amq.pdf"}}, "sms": WRONG}},
    {"DATABASE": "a", "DATABASES": ("b", "b"), "RETIRING": ("b",)},
    {"LINKS": {"a": "a", "b": "https://b/{?}", "c": "https://c/{", " ": WRONG}},
    {"PERIODIC": {"a": {"?": WRONG}, "b": WRONG}},
    {"PLACEMENT": "spread"},
    {"QUEUES": {"mail": {"?": WRONG, "concurrency": WRONG, "rate": WRONG}, "a,b": WRONG}},
    {"SEARCHABLE": {"shop.jobs.send": WRONG}},
    {"RETENTION": {"?": WRONG, "completed": WRONG}},
    {"RULES": {"?": 1, "late-worker": 1, "no-free-slot": {"mail": 1}, "paused-queue": {"mail": WRONG}}},
    {"RULES": {"?": 1, "late-worker": 1, "no-free-slot": {"mail": 1}}},
]
"""Values of the setting SKIPQUEUE with mistakes inside nested values. `?` stands for an unknown key."""


def settings() -> Iterator[str]:
    """Yield a line for each setting, for each key inside a setting, and for each message about a wrong value."""
    yield from (f"SKIPQUEUE[{key!r}]: {default}" for key, default in SETTINGS.items())
    yield from (f"SKIPQUEUE['CARRIERS'][…][{key!r}]: {default}" for key, default in CARRIER_OPTIONS.items())
    yield from (f"TASKS[…]['OPTIONS'][{key!r}]: {default}" for key, default in BACKEND_OPTIONS.items())
    for value in [*({key: WRONG} for key in SETTINGS), *NESTED]:
        with override_settings(SKIPQUEUE=value):
            problems = run_checks(tags=["django_skipqueue"])
            yield from (str(problem.msg) for problem in problems if problem.id in ("skipqueue.E001", "skipqueue.E012"))
    for key in ("?", *BACKEND_OPTIONS):
        backend = SkipQueueBackend("default", {"OPTIONS": {key: WRONG}})
        yield from (str(problem.msg) for problem in backend.check())
