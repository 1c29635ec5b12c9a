"""The plugin for pytest: fixtures around `django_skipqueue.testing`.

Invariant: loading it imports no model and reads no setting, because pytest loads it in every project of an environment,
with or without Django, and before settings are chosen. Without a fixture of it in use, it does nothing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..models import Job
    from ..testing import CapturedJobs, InlineJobs


@pytest.fixture
def run_jobs(request: pytest.FixtureRequest) -> "Callable[..., list[Job]]":
    """`django_skipqueue.testing.run_jobs`, with access to the database."""
    _require_database(request)
    from ..testing import run_jobs

    return run_jobs


@pytest.fixture
def deferred_jobs(request: pytest.FixtureRequest) -> "CapturedJobs":
    """The jobs that the test defers, as a list that grows: `django_skipqueue.testing.capture_deferred`."""
    _require_database(request)
    from ..testing import capture_deferred

    return capture_deferred().__enter__()  # without an end, at which the test may have left no usable transaction


@pytest.fixture
def inline_jobs(request: pytest.FixtureRequest) -> "Iterator[InlineJobs]":
    """Run each job where the test defers it. The jobs that ran, as a list: `django_skipqueue.testing.run_inline`."""
    _require_database(request)
    from ..testing import run_inline

    with run_inline() as ran:
        yield ran


@pytest.fixture
def kill_after(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run the queued jobs in another process, which is killed by SIGKILL once it has recorded the step of this name.

    `kill_after("book")` returns when the process is dead and its jobs are recovered: `run_jobs()` then goes on with
    them. Further arguments are those of `run_jobs`. Needs pytest-django; the test has transactions of its own.
    """
    request.getfixturevalue("transactional_db")
    from ..testing.crash import run_jobs_and_kill

    return run_jobs_and_kill


def _require_database(request: pytest.FixtureRequest) -> None:
    """Give the test access to the database as pytest-django's `db` does, if that is installed."""
    from django.apps import apps

    if not apps.ready:
        pytest.fail(
            f"The fixture {request.fixturename!r} of django_skipqueue needs Django's settings. Install "
            "pytest-django and set DJANGO_SETTINGS_MODULE, or call django.setup() in conftest.py.",
            pytrace=False,
        )
    if request.config.pluginmanager.hasplugin("django"):
        request.getfixturevalue("db")
