"""The pytest plugin of the package, and Django's test runner. Each test runs them in a separate process."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_module(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m …` in this folder, with the settings and the database of the suite."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")]),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


def run_pytest(folder: Path, code: str, *options: str, **environment: str) -> str:
    """Run a module of tests. Returns the output. A pytest.ini keeps the options of this suite out."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n    ignore:.*MAILERS\n")
    (folder / "test_it.py").write_text(code)
    return run_module(folder, "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *options, **environment).stdout


TESTS_WITH_FIXTURES = """
import pytest
from tests.app import jobs
from tests.app.models import Ledger

def test_run_jobs(run_jobs):
    jobs.add.defer(1, 2)
    assert [job.result for job in run_jobs()] == [3]

def test_deferred_jobs(deferred_jobs):
    jobs.add.defer(1, 2)
    assert [job.args for job in deferred_jobs] == [[1, 2]]

def test_inline_jobs(inline_jobs):
    jobs.add.defer(1, 2)
    assert [job.result for job in inline_jobs] == [3]

def test_jobs_of_other_tests_are_gone(deferred_jobs, run_jobs):
    assert list(deferred_jobs) == run_jobs() == []
    jobs.noop.defer()
    assert deferred_jobs[0].status == "queued"

@pytest.mark.django_db(transaction=True)
def test_with_a_mark(inline_jobs, run_jobs, deferred_jobs):
    from django.db import connection
    assert not connection.in_atomic_block
    jobs.record.defer("entry")
    assert Ledger.objects.count() == len(deferred_jobs) == 1

def test_with_a_fixture(transactional_db, deferred_jobs):
    from django.db import connection
    assert not connection.in_atomic_block

def test_failure(deferred_jobs):
    from django_skipqueue.testing import assert_deferred
    jobs.add.defer(1)
    assert_deferred(jobs.add, 2)
"""


def test_tests_can_use_the_fixtures_run_jobs_deferred_jobs_and_inline_jobs(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, TESTS_WITH_FIXTURES)
    assert "6 passed" in output, output
    assert "1 failed" in output
    assert "No job of tests.app.jobs.add with a=2 was deferred." in output
    assert "raise AssertionError" not in output, "the traceback ends in the test"


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    [plugin] = [point for point in entry_points(group="pytest11") if point.name == "skipqueue"]
    assert plugin.value == "django_skipqueue.integrations.pytest", "`make setup` installs the package again"


WITHOUT_DJANGO = """
import sys

def test_it():
    assert not [name for name in sys.modules if name.startswith("django_skipqueue.") and name.endswith(".models")]
    assert "django_skipqueue.integrations.pytest" in sys.modules
    from django.conf import settings
    assert not settings.configured
"""


def test_the_plugin_imports_no_models_and_warns_of_nothing_without_django(tmp_path: Path) -> None:
    """The project has no settings and no pytest-django, and turns every warning into an error."""
    output = run_pytest(tmp_path, WITHOUT_DJANGO, "-p", "no:django", DJANGO_SETTINGS_MODULE="")
    assert "1 passed" in output, output


@pytest.mark.parametrize("fixture", ["run_jobs", "deferred_jobs", "inline_jobs"])
def test_the_error_of_a_fixture_without_django_settings_says_so(tmp_path: Path, fixture: str) -> None:
    code = f"def test_it({fixture}):\n    pass\n"
    output = run_pytest(tmp_path, code, "-p", "no:django", DJANGO_SETTINGS_MODULE="")
    assert f"The fixture '{fixture}' of django_skipqueue needs Django's settings." in output


CONFTEST_WITH_SETTINGS = """
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django_skipqueue"])
django.setup()
"""


def test_the_fixtures_work_with_settings_configured_in_conftest(tmp_path: Path) -> None:
    """Without pytest-django, no fixture gives access to the database, so the project gives it."""
    (tmp_path / "conftest.py").write_text(CONFTEST_WITH_SETTINGS)
    code = "def test_it(run_jobs):\n    assert run_jobs.__module__ == 'django_skipqueue.testing.run'\n"
    output = run_pytest(tmp_path, code, "-p", "no:django", DJANGO_SETTINGS_MODULE="")
    assert "1 passed" in output, output


TESTS_FOR_DJANGOS_RUNNER = """
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django_skipqueue.models import Job
from django_skipqueue.testing import arun_jobs, assert_deferred, assert_not_deferred, run_inline, run_jobs
from tests.app import jobs
from tests.testing import jobs as tasks

class Tests(TestCase):
    def test_run(self):
        jobs.add.defer(1, 2)
        assert_deferred(jobs.add, 1)
        self.assertEqual([job.result for job in run_jobs()], [3])

    def test_broken(self):
        tasks.break_the_transaction.defer()
        self.assertEqual([job.status for job in run_jobs()], ["failed"])

    async def test_async(self):
        await tasks.anote.adefer("entry")
        self.assertEqual([job.status for job in await arun_jobs()], ["completed"])

class Committed(TransactionTestCase):
    def test_inline(self):
        with run_inline():
            tasks.note.defer("entry")
        self.assertEqual(tasks.entries(), ["entry"])

    def test_nothing_is_left(self):
        assert_not_deferred()

class Simple(SimpleTestCase):
    def test_no_database(self):
        assert_deferred(jobs.add, 1)

class Failure(TestCase):
    def test_failure(self):
        jobs.add.defer(1)
        assert_deferred(jobs.add, 2)
"""


def test_djangos_test_runner_can_use_the_testing_helpers(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS_FOR_DJANGOS_RUNNER)
    output = run_module(tmp_path, "django", "test", "--no-color").stdout
    assert "Ran 7 tests" in output, output
    assert "FAILED (failures=2)" in output
    assert "subclass TestCase or TransactionTestCase" in output
    assert "No job of tests.app.jobs.add with a=2 was deferred.\nDeferred were:\n  tests.app.jobs.add(a=1)" in output
