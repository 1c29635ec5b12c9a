"""Sets several aliases of `TASKS` for all tests of this folder. Without Django's tasks, no test is collected."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import django
import pytest
from django.test import override_settings

FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"

collect_ignore_glob = [] if find_spec(FRAMEWORK) else ["test_*.py"]

OUR_BACKEND = "django_skipqueue.backend.SkipQueueBackend"

TASKS: dict[str, Any] = {
    "default": {"BACKEND": OUR_BACKEND, "QUEUES": []},
    "mail": {
        "BACKEND": OUR_BACKEND,
        "QUEUES": ["mail"],
        "OPTIONS": {
            "max_attempts": 3,
            "backoff": "tests.integrations.django_tasks.app.backoffs.a_minute",
            "timeout": 45.0,
        },
    },
    "other": {"BACKEND": OUR_BACKEND, "QUEUES": [], "OPTIONS": {"database": "other"}},
    "elsewhere": {"BACKEND": f"{FRAMEWORK}.backends.dummy.DummyBackend", "QUEUES": []},
}


if not collect_ignore_glob:
    with override_settings(TASKS=TASKS):  # because the decorators of the tasks read the setting TASKS
        from .app import tasks, typed_tasks  # noqa: F401

    from django_skipqueue.integrations.django_tasks import backend

    UID = backend.__name__

    for signal, _ in backend.RECEIVERS:
        # The tests of all other folders are about a project without Django's tasks.
        signal.disconnect(dispatch_uid=UID)


@pytest.fixture(autouse=True)
def tasks_setting() -> Iterator[None]:
    for signal, receiver in backend.RECEIVERS:
        signal.connect(receiver, dispatch_uid=UID)
    with override_settings(TASKS=TASKS):
        yield
    for signal, _ in backend.RECEIVERS:
        signal.disconnect(dispatch_uid=UID)
