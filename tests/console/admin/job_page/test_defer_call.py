"""`defer_call`, which returns the Python code that enqueues a job again."""

from itertools import product
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.console.admin.jobs.links import defer_call
from django_skipqueue.console.arguments import redacted
from django_skipqueue.exceptions import InvalidArguments
from django_skipqueue.models import Job

from ....app import jobs as tasks
from ....app.rows import make_job
from ....harness.table import Case
from ..conftest import page

pytestmark = pytest.mark.django_db

ADD_TASK: Any = tasks.add
COPIED_COLUMNS = ("task", "args", "kwargs", "queue_name", "priority", "max_attempts", "timeout", "unique_key")


def defer_code(job: Job) -> str:
    return defer_call(job, redacted(job.task, job.args, job.kwargs))


def run_code(code: str) -> Job:
    exec(code, {})
    return Job.objects.latest("pk")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue_name": "mail", "priority": 7, "max_attempts": 3, "timeout": 1.5, "unique_key": 'it\'s "one"'},
    {"priority": -100, "queue_name": "ü\\n"},
]
VALUES = [1, -1.5, 1e23, True, None, "é'\"\\\n\t\u2028", [1, [None, {"a b": {"c": []}}]], {"class": 1, "": "x"}, "…"]


def test_the_code_enqueues_the_same_job(case: Case) -> None:
    for options, value in product(OPTIONS, VALUES):
        with case(options=options, value=value):
            job = ADD_TASK.using(**options).defer(value, b={"x": value})
            job.refresh_from_db()
            code = defer_code(job)
            assert code.startswith("from tests.app.jobs import add\n\nadd.")
            job.delete()
            new_job = run_code(code)
            new_job.refresh_from_db()
            assert {name: getattr(new_job, name) for name in COPIED_COLUMNS} == {
                name: getattr(job, name) for name in COPIED_COLUMNS
            }


def test_the_code_for_a_job_with_default_options_has_no_options() -> None:
    assert defer_code(tasks.add.defer(1, 2)) == "from tests.app.jobs import add\n\nadd.defer(1, 2)"


def test_the_code_has_an_ellipsis_in_place_of_a_secret() -> None:
    job = make_job(
        task="tests.app.jobs.add", kwargs={"a": {"token": "s3cret", "id": 1}, "b": [{"password": "hunter22"}]}
    )
    code = defer_code(job)
    assert "s3cret" not in code
    assert "hunter22" not in code
    assert 'a={"id": 1, "token": ...}, b=[{"password": ...}]' in code
    with pytest.raises(InvalidArguments):
        run_code(code)


def test_there_is_no_code_for_an_unknown_task_or_very_long_arguments() -> None:
    assert defer_code(make_job(task="gone.jobs.task")) == ""
    assert defer_code(make_job(task="tests.app.jobs.add", args=["x" * 100_000, 1])) == ""


def test_the_page_of_a_job_shows_the_code_that_defers_it(operator: Client) -> None:
    job = ADD_TASK.defer(1, b="<b>")
    text = operator.get(page("change", job.pk)).text
    assert "add.defer(1, b=&quot;&lt;b&gt;&quot;)" in text
    assert 'data-copy="skipqueue-defer-call"' in text
