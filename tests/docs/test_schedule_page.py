"""docs/how-to/schedule.md, *Every day*, by its own text: a day has one job, however often the command is called."""

import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from django.test.utils import isolate_apps

from django_skipqueue.models import Job

from ..app import jobs
from ..app.sessions import Session

PAGE = Path(__file__).parents[2] / "docs/how-to/schedule.md"

pytestmark = pytest.mark.django_db(transaction=True)


def block(path: str) -> str:
    """The code of the page that begins with the path of its file."""
    found = re.search(rf"```python\n# {re.escape(path)}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **values: Any) -> types.ModuleType:
    """A module of the page's project."""
    made = types.ModuleType(name)
    vars(made).update(values)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[BaseCommand]:
    """The page's command, in a project with the page's model."""
    module(monkeypatch, "reports")
    module(monkeypatch, "reports.jobs", daily_report=DailyReport())
    models = module(monkeypatch, "reports.models")
    label = "class Meta:\n        app_label = 'app'\n"
    with isolate_apps("tests.app"):
        exec(block("reports/models.py").replace("class Meta:\n", label), vars(models))
    commands: dict[str, Any] = {"__name__": "reports.management.commands.defer_daily_report"}
    exec(block("reports/management/commands/defer_daily_report.py"), commands)
    with connection.schema_editor() as editor:
        editor.create_model(models.Occurrence)
    yield commands["Command"]()
    with connection.schema_editor() as editor:
        editor.delete_model(models.Occurrence)


class DailyReport:
    """In the place of the page's task."""

    fails = False

    def defer(self, *, day: str) -> None:
        """Enqueue a job of the suite's."""
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)
        jobs.noop.defer()
        if self.fails:
            raise RuntimeError("the command dies")


def test_a_day_has_one_job_also_when_the_first_has_finished(command: BaseCommand) -> None:
    call_command(command)
    Job.objects.update(status="completed", finished_at="2026-01-01T00:00Z")
    call_command(command)
    assert Job.objects.count() == 1


def test_a_command_that_died_is_simply_called_again(command: BaseCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DailyReport, "fails", True)
    with pytest.raises(RuntimeError):
        call_command(command)
    assert not Job.objects.exists()
    monkeypatch.setattr(DailyReport, "fails", False)
    call_command(command)
    assert Job.objects.count() == 1


def test_two_at_once_defer_one(command: BaseCommand, session: Callable[[], Session]) -> None:
    sessions = [session() for _ in range(4)]
    for running in [each.start(call_command, command) for each in sessions]:
        running.result(timeout=30)
    assert Job.objects.count() == 1
