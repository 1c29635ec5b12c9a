"""No page of the admin, no command, no log line and no stored error shows a secret argument."""

import logging
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from django_skipqueue import Batch, job
from django_skipqueue.console.search import cause_query
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner
from django_skipqueue.values.records import Cause
from django_skipqueue.values.redaction import MASK

from ...app.rows import STATUSES, make_job
from ...app.waiting import wait_until
from ...harness.partitions import drop_partitions
from ...parts.schedules.rows import fire_all, make_schedule
from ..cli.running import skipqueue
from .conftest import LIST, page

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "hunter22hunter22"
TASK = "shop.log_in"
LONG_AGO = timedelta(days=-5)
SCHEDULES = "/admin/django_skipqueue/schedule/"
BATCHES = "/admin/django_skipqueue/jobbatch/"
ARCHIVE = "/admin/django_skipqueue/archivedjob/"


def log_in(user: str, password: str) -> Any:
    """A task whose errors, results and keys quote its secret."""
    if user == "ada":
        raise ValueError(f"the password of {user} is not {password}")
    return {password: Decimal(1)}


def pay(token: UUID, amount: int = 1) -> None:
    """A task whose secret argument has an annotation."""


@pytest.fixture(autouse=True)
def _tasks(registry: Registry) -> None:
    job(name=TASK, unique_key=lambda user, password: f"login:{user}:{password}", max_attempts=1)(log_in)
    job(name="shop.pay", max_attempts=1)(pay)


def make_job_with_secrets(status: str, *, number: int = 0, **fields: Any) -> Job:
    """Make a job that has the secret in every column that may quote an argument."""
    error = {"attempt": 1, "exception": "builtins.ValueError", "message": f"not {SECRET}", "place": "shop.log_in"}
    values: dict[str, Any] = {
        "task": TASK,
        "args": ["ada", SECRET],
        "unique_key": f"login:{status}{number}:{SECRET}",
        "limit_key": f"rerun:login:{SECRET}",
        "limit_kind": "sequence",
        "capacity": 1,
        "rate_key": f"rate:{SECRET}",
        "rate_interval": 60.0,
        "rate_burst": 1,
        "result": {"password": SECRET} if status == "completed" else None,
        "metadata": {"token": SECRET},
        "last_error": f"ValueError: not {SECRET}",
        "errors": [{**error, "traceback": f"Traceback\n  shop.py\nValueError: not {SECRET}"}],
        "operations": [{"verb": "retry", "by": "ann", "reason": f"try {SECRET}", "at": "2026-01-01T00:00:00+00:00"}],
    } | fields
    return make_job(status, **values)


@pytest.fixture
def jobs() -> dict[str, Job]:
    jobs_by_status = {
        status: make_job_with_secrets(status, enqueued_at=LONG_AGO, run_after=LONG_AGO) for status in STATUSES
    }
    # A job without a limit, so it waits for its rate.
    make_job_with_secrets("blocked", number=1, limit_key=None, limit_kind=None, capacity=None)
    return jobs_by_status


def post_and_follow(client: Client, address: str, **posted: str) -> str:
    return str(client.post(address, posted, follow=True).text)


def test_no_page_of_the_admin_shows_a_secret(
    operator: Client, jobs: dict[str, Job], registry: Registry, settings: Any, subtests: pytest.Subtests
) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}
    archived_job = make_job_with_secrets("failed", number=2, finished_at=timedelta(days=-40))
    Pruner(Store("default")).batch()
    schedule = make_schedule("s", task=TASK, args=["ada", SECRET], due=1)
    fire_all()
    with Batch(name="b", on_finish=registry.get(TASK).s("ada", SECRET)) as batch:
        registry.get(TASK).defer("bob", SECRET)
    cause = Cause(TASK, "builtins.ValueError", "shop.log_in")
    finished_ids = {status: jobs[status].pk for status in ("completed", "failed", "discarded")}
    job_with_wrong_argument = make_job_with_secrets("failed", number=3, task="shop.pay", args=[SECRET])
    pages = {
        LIST: TASK,
        **{f"{LIST}?status={status}": TASK for status in STATUSES},
        **{page("change", job.pk): MASK for job in jobs.values()},
        page("history", jobs["failed"].pk): "history",
        page("delete", jobs["completed"].pk): "Delete",
        **{page("edit", pk): MASK for pk in finished_ids.values()},
        **{page("run_again", pk): "Run" for pk in finished_ids.values()},
        page("cancel", jobs["running"].pk): "Cancel",
        f"{LIST}limits/": MASK,
        f"{LIST}limits/?from=rerun:login:h": "of this or a later key",
        f"{LIST}?status=blocked&limit_of={jobs['blocked'].pk}": TASK,
        f"{LIST}dashboard/": MASK,
        f"{LIST}doctor/": MASK,
        f"{LIST}?status=failed&{cause_query(cause)}": TASK,
        f"{LIST}metrics/": "skipqueue_",
        "/admin/": "Jobs",
        BATCHES: "b",
        f"{BATCHES}{batch.id}/change/": TASK,
        f"{LIST}?batch={batch.id}": TASK,
        SCHEDULES: "cannot run",
        f"{SCHEDULES}{schedule.pk}/change/": MASK,
        ARCHIVE: TASK,
        f"{ARCHIVE}{archived_job.pk}/change/": MASK,
        f"{ARCHIVE}{archived_job.pk}/run-again/": "Run",
    }
    for address, expected_text in pages.items():
        with subtests.test(address):
            response = operator.get(address)
            assert response.status_code == 200
            assert expected_text in response.text
            assert SECRET not in response.text
    run_address = f"{SCHEDULES}{schedule.pk}/run/"
    pay_schedule = make_schedule("t", task="shop.pay", kwargs={"token": SECRET})
    broken_schedule = make_schedule("u", task=TASK, kwargs={"password": SECRET, "user": SECRET})
    answers: dict[str, Callable[[], str]] = {
        "run now": lambda: post_and_follow(operator, run_address),
        "run now, with a key that is taken": lambda: post_and_follow(operator, run_address),
        "run now, with an argument that does not fit": lambda: post_and_follow(
            operator, f"{SCHEDULES}{pay_schedule.pk}/run/"
        ),
        "run now, with a secret twice": lambda: post_and_follow(operator, f"{SCHEDULES}{broken_schedule.pk}/run/"),
        "run again unchanged, with an argument that does not fit": lambda: post_and_follow(
            operator, page("edit", job_with_wrong_argument.pk), confirmed="yes", argument_0=f'"{MASK}"', argument_1=""
        ),
        "retry, with a key that is taken": lambda: post_and_follow(
            operator, page("retry", make_job_with_secrets("failed", number=4, unique_key=jobs["queued"].unique_key).pk)
        ),
    }
    for name, answer in answers.items():
        with subtests.test(name):
            text = answer()
            assert "shop" in text
            assert SECRET not in text
    drop_partitions()


def test_no_command_prints_a_secret(jobs: dict[str, Job], registry: Registry, subtests: pytest.Subtests) -> None:
    with Batch(name="b", on_finish=registry.get(TASK).s("ada", SECRET)) as batch:
        registry.get(TASK).defer("bob", SECRET)
    make_schedule("s", task=TASK, args=["ada", SECRET], due=1)
    make_schedule("t", task="shop.pay", kwargs={"token": SECRET})
    fire_all()
    ids = [str(job.pk) for job in jobs.values()]
    commands: list[list[str]] = [
        *(["list", "--status", status] for status in STATUSES),
        *(["show", pk] for pk in ids),
        ["status"],
        ["limits"],
        ["limits", f"rerun:login:{SECRET}"],
        ["schedules"],
        ["schedules", "run", "s"],
        ["schedules", "run", "s"],
        ["schedules", "run", "t"],
        ["doctor"],
        ["retry", ids[-1]],
        ["health"],
        ["batches"],
        ["batches", str(batch.id)],
    ]
    with_json = [command for command in commands if command[0] in ("list", "show", "status", "limits", "doctor")]
    for command in [*commands, *([*command, "--json"] for command in [*with_json, ["schedules"]])]:
        with subtests.test(" ".join(command)):
            result = skipqueue(*command)
            assert result.out + result.err
            assert SECRET not in result.out + result.err


def test_neither_the_row_nor_the_log_of_a_failed_attempt_has_a_secret(
    caplog: pytest.LogCaptureFixture, worker_thread: Callable[..., Any]
) -> None:
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    formatter = logging.Formatter()
    for task, args in {(TASK, ("ada", SECRET)), (TASK, ("bob", SECRET)), ("shop.pay", (SECRET,))}:
        make_job("queued", task=task, args=list(args), max_attempts=1)
    worker_thread()
    wait_until(lambda: caplog.text.count("job failed") == 3)
    failed_jobs = Job.objects.failed()
    assert sorted(job.last_error.partition(":")[0] for job in failed_jobs) == [
        "UndecodableArguments", "UnstorableResult", "ValueError",
    ]  # fmt: skip
    for failed in failed_jobs:
        assert MASK in failed.last_error
        assert SECRET not in str([failed.last_error, failed.errors])
    assert "UnstorableResult" in caplog.text
    assert SECRET not in "\n".join(map(formatter.format, caplog.records))
    assert SECRET not in caplog.text


def test_the_error_of_a_schedule_has_no_secret() -> None:
    make_schedule("s", task="shop.pay", kwargs={"token": SECRET, "amont": SECRET}, due=1)
    fire_all()
    assert SECRET not in Schedule.objects.get().error != ""
