"""`skipqueue doctor`: findings in 80 columns, as JSON, and as an exit code."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils.translation import gettext

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.rules.examination import rules_of

from ...app.rows import make_job, make_worker
from ...harness.languages import use_translations
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("new_tables")
def test_without_findings_the_doctor_prints_that_all_is_well_and_exits_with_0() -> None:
    make_worker()
    result = skipqueue("doctor")
    assert result.code == 0
    assert re.fullmatch(
        rf"All is well\.\n\n{len(rules_of('default'))} checks found no problem, in \d+\.\d\d s\. -v 2 lists them\.\n",
        result.out,
    )
    assert result.err == ""


@pytest.mark.usefixtures("new_tables")
def test_verbosity_2_names_the_checks_that_found_nothing() -> None:
    make_worker()
    result = skipqueue("doctor", "-v", "2")
    assert result.code == 0
    assert result.out.startswith(f"All is well.\n\n{len(rules_of('default'))} checks found no problem, in ")
    assert "prune-lag" in result.out
    assert "skipqueue_job: " in result.out


def test_the_doctor_prints_the_worst_findings_first_with_commands_to_paste() -> None:
    make_job("running", locked_at=timedelta(hours=-2), task="shop.jobs." + "rebuild_" * 20)
    make_job("completed", finished_at=timedelta(days=-3))
    result = skipqueue("doctor")
    assert result.code == Exit.NEGATIVE
    assert re.match(r"\d+ problems\n\nCRITICAL\n", result.out)
    assert result.out.endswith(" s. -v 2 lists them.\n")
    headings = [line for line in result.out.splitlines() if line.isupper() and " " not in line]
    assert headings == ["CRITICAL", "WARNING"]
    assert "  Running jobs whose worker is gone (orphaned-job)\n    Jobs: 1. job " in result.out
    assert "\n        python manage.py prunejobs\n" in result.out
    assert max(len(line) for line in result.out.splitlines() if "rebuild_rebuild" not in line) <= 80


@pytest.mark.usefixtures("new_tables")
def test_the_doctor_prints_findings_as_json_in_english(settings: Any, tmp_path: Path) -> None:
    use_translations(settings, tmp_path, {"Finished jobs are not deleted in time": "Malnovaj taskoj"})
    make_worker()
    make_job("completed", finished_at=timedelta(days=-3))
    assert gettext("Finished jobs are not deleted in time") == "Malnovaj taskoj"
    result = skipqueue("doctor", "--json")
    assert result.code == Exit.NEGATIVE
    (report,) = result.objects
    first_finding, *other_findings = report["findings"]
    assert first_finding == {
        "code": "prune-lag",
        "severity": "warning",
        "title": "Finished jobs are not deleted in time",
        "found": "The retention of the oldest finished job has been over for 2 d.",
        "advice": first_finding["advice"],
        "command": "python manage.py prunejobs",
        "subject": "",
        "since": None,
        "seconds": None,
        "link": None,
        "database": "",
    }
    assert report["is_well"] is False
    assert {finding["severity"] for finding in other_findings} == {"ok"}
    assert report["seconds"] > 0


def test_the_doctor_exits_with_1_if_the_database_cannot_be_reached(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "doctor", settings="DATABASES['default']['PORT'] = 1")
    assert process.wait() == 1
    assert "The queue's database cannot be used (database-unusable)" in process.log
    assert "Traceback" not in process.log
