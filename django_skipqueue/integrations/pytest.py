"""The pytest plugin: fixtures for the helpers in `django_skipqueue.testing`.

pytest loads this module in every project of the environment, even without Django, and before Django's settings are
known. So loading it imports no model and reads no setting. It does nothing unless a test uses one of its fixtures.
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
    """A list of the jobs that the test has deferred so far. See `django_skipqueue.testing.capture_deferred`."""
    _require_database(request)
    from ..testing import capture_deferred

    return capture_deferred().__enter__()  # never exited, because the exit sends a query, which may be impossible then


@pytest.fixture
def inline_jobs(request: pytest.FixtureRequest) -> "Iterator[InlineJobs]":
    """Run each job when the test defers it. Gives a list of the jobs that ran. See `testing.run_inline`."""
    _require_database(request)
    from ..testing import run_inline

    with run_inline() as ran_jobs:
        yield ran_jobs


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
    """Request pytest-django's fixture `db` for this test, if pytest-django is installed."""
    from django.apps import apps

    if not apps.ready:
        pytest.fail(
            f"The fixture {request.fixturename!r} of django_skipqueue needs Django's settings. Install "
            "pytest-django and set DJANGO_SETTINGS_MODULE, or call django.setup() in conftest.py.",
            pytrace=False,
        )
    if request.config.pluginmanager.hasplugin("django"):
        request.getfixturevalue("db")
