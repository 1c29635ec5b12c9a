"""The package can be imported without settings, and has the names that users import."""

import subprocess
import sys

import django_skipqueue


def test_importing_the_package_loads_no_model_and_needs_no_settings() -> None:
    script = (
        "import sys, django_skipqueue; from django.conf import settings; "
        "from django_skipqueue import Discard, JobContext, Retry, Snooze, Task, job; "
        "assert not settings.configured; assert not [m for m in sys.modules if m.endswith('.models')], sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_the_names_that_users_import_are_listed() -> None:
    assert set(django_skipqueue.__all__) >= {"Discard", "JobContext", "Retry", "Snooze", "Task", "job"}
    for name in django_skipqueue.__all__:
        assert getattr(django_skipqueue, name)
