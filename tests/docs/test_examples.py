"""The main examples of the how-to pages do what the pages say.

`test_pages` runs every code block with stand-ins. These tests read examples from the pages, call their functions, and
run their jobs on the real queue.
"""

import datetime
import inspect
import re
import unittest
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.http import HttpRequest, HttpResponse
from django.test import TestCase, override_settings
from django.urls import path

from django_skipqueue import Batch, job, testing
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, JobBatch, Schedule
from django_skipqueue.parts.schedules.entry import entries, synchronise
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.notes import logs_of

from ..app.models import Ledger
from ..parts.schedules.rows import STORE, fire_all, let_time_pass, without_entries
from .test_pages import PAGES, Reader, code_blocks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("registry")]


@pytest.fixture(autouse=True)
def _own_entries() -> Iterator[None]:
    """Forget the schedules of a page after the test."""
    with without_entries():
        yield


def run_blocks(page: str, *defined_names: str, project_names: Mapping[str, Any] | None = None) -> Any:
    """Run the code blocks of a page that define one of these names. Returns an object with all names of the blocks.

    project_names: names of the reader's project that the blocks may use, with their values.
    """
    (file,) = (file for file in PAGES if file.stem == page)
    reader = Reader(file.read_text())
    reader.names.update(project_names or {})
    definitions = [f"{keyword} {name}" for name in defined_names for keyword in ("def", "class")]
    blocks = [
        block
        for block in code_blocks(file)
        if block.language == "python" and any(definition in block.code for definition in definitions)
    ]
    for block in blocks:
        reader.run(block.code, f"{file}:{block.line}")
    assert len(blocks) >= 1, defined_names
    return SimpleNamespace(**reader.names)


def results_of(task: Any) -> list[Any]:
    """The results of the jobs of a task, the first enqueued first."""
    return [job.result for job in Job.objects.filter(task=task.name).order_by("pk")]


def test_a_batch_reports_once_its_last_receipt_is_sent() -> None:
    page = run_blocks("batches", "mail_receipts")
    batch = page.mail_receipts("May", [1, 2, 3])
    run_jobs()
    assert results_of(page.report) == ["May: 3 of 3 receipts sent"]
    assert not Job.objects.filter(task=page.warn.name).exists()
    assert batch.row.name == "May"


def test_a_batch_with_a_failed_receipt_warns() -> None:
    page = run_blocks("batches", "mail_receipts")
    page.mail_receipts("May", [1, 2, 3])
    first_receipt_job = Job.objects.order_by("pk")[0]
    first_receipt_job.discard()
    run_jobs()
    assert [warning_job.args for warning_job in Job.objects.filter(task=page.warn.name)] == [["May"]]
    assert not Job.objects.filter(task=page.report.name).exists()


def test_a_job_of_the_page_adds_jobs_to_its_batch() -> None:
    page = run_blocks("batches", "mail_receipts", "import_file")
    with Batch(on_success=page.report.s("files")) as batch:
        page.import_file.defer("a.csv")
    run_jobs()
    assert [receipt_job.args for receipt_job in batch.jobs.filter(task=page.mail_receipt.name)] == [[0], [1], [2]]
    assert results_of(page.report) == ["files: 4 of 4 receipts sent"]


def test_a_chain_mails_its_pages_after_they_are_made() -> None:
    page = run_blocks("batches", "send_report")
    page.send_report(7)
    assert sorted(Job.objects.values_list("status", flat=True)) == ["blocked", "blocked", "blocked", "queued"]
    jobs_run = run_jobs()
    assert [run.task.rpartition(".")[2] for run in jobs_run] == ["fetch", "make_page", "make_page", "mail"]
    assert results_of(page.mail) == ["page 1 and page 2"]
    assert JobBatch.objects.get().finished_at is not None


def test_a_job_of_the_page_waits_for_two_jobs() -> None:
    page = run_blocks("batches", "send_report", "sell")
    page.sell(7)
    jobs_run = run_jobs()
    assert [(run.task.rpartition(".")[2], run.result) for run in jobs_run] == [
        ("make_page", "page 1"),
        ("make_page", "page 2"),
        ("mail", "page 1 and page 2"),
        ("mail", "page 1 and page 2"),
    ]


def test_the_task_of_the_page_stores_its_progress() -> None:
    class Product:
        objects = SimpleNamespace(update_or_create=lambda sku, defaults: Ledger.objects.create(entry=sku))

    page = run_blocks("progress", "import_products", project_names={"Product": Product})
    page.import_products.defer([{"sku": "a", "name": "A"}, {"sku": "b", "name": "B"}])
    (import_job,) = run_jobs()
    assert (import_job.status, import_job.result) == ("completed", 2)
    assert import_job.current_progress is not None
    assert (import_job.current_progress.percent, import_job.current_progress.text) == (100, "2 of 2")
    assert list(Ledger.objects.order_by("pk").values_list("entry", flat=True)) == ["a", "b"]


def test_the_task_of_the_page_keeps_its_log() -> None:
    page = run_blocks("progress", "charge")
    page.logger.setLevel("INFO")
    page.charge.defer(42)
    (charge_job,) = run_jobs()
    (log,) = logs_of(charge_job.logs)
    assert [(line.level, line.message) for line in log.lines] == [
        ("INFO", "charging 42"),
        ("WARNING", "the bank was slow"),
    ]


def test_the_tasks_of_the_page_get_typed_arguments() -> None:
    charge_calls: list[Any] = []
    reminder_calls: list[Any] = []
    project_names = {
        "gateway": SimpleNamespace(charge=lambda *args: charge_calls.append(args)),
        "calendar": SimpleNamespace(remind=lambda *args: reminder_calls.append(args)),
    }
    page = run_blocks("arguments", "charge", "total", project_names=project_names)
    due_date = datetime.date(2027, 1, 1)
    user = User.objects.create(username="ada", email="ada@example.com")
    charge_job = page.charge.defer(user, page.Plan.YEARLY, [page.Line("mug", Decimal("9.90"))], due=due_date)
    assert charge_job.args[1:] == ["yearly", [{"sku": "mug", "price": "9.90"}]]
    remind_at = datetime.datetime(2027, 1, 1, 9, tzinfo=datetime.UTC)
    page.remind.defer(remind_at)
    page.total.defer([Decimal("1.50"), Decimal("2.50")])
    assert {run.status for run in run_jobs()} == {"completed"}
    assert charge_calls == [("ada@example.com", Decimal("9.90"), due_date)]
    assert reminder_calls == [(remind_at, timedelta(days=1))]
    assert page.total.result_of(Job.objects.get(task=page.total.name)) == Decimal("4.00")


def test_the_unique_jobs_of_the_page_are_inserted_once() -> None:
    page = run_blocks("unique-jobs", "rebuild_index", "refresh_index", "remind")
    assert (page.first.created, page.same.created, page.same.pk) == (True, False, page.first.pk)
    assert page.first.unique_key.endswith("rebuild_index(shop_id=42)")
    waiting_jobs = Job.objects.filter(task=page.rebuild_index.name)
    assert waiting_jobs.count() == 1, "the key of refresh_index is taken"
    run_jobs()
    assert page.rebuild_index.defer(42).created
    assert page.remind.defer(1).created
    run_jobs()
    assert not page.remind.defer(1).created, "the key is held for an hour"


@pytest.mark.django_db(transaction=True)
def test_the_limits_of_the_page_limit_running_jobs() -> None:
    page = run_blocks("limits", "synchronize", "send_update", "import_row")
    expected_statuses = ["queued", "queued", "blocked", "blocked", "blocked"]
    synchronize_jobs = Job.objects.filter(task=page.synchronize.name).order_by("pk")
    assert [job_of_page.status for job_of_page in synchronize_jobs] == expected_statuses
    assert Job.objects.filter(task=page.import_row.name).queued().count() == 3
    for text in ("first", "second"):
        page.send_update.using(priority=len(text)).defer(1, text)  # the second has the higher priority
    jobs_run = run_jobs()
    assert {run.status for run in jobs_run} == {"completed"}
    assert [run.args[1] for run in jobs_run if run.task == page.send_update.name] == ["first", "second"]
    positions_of_small = [position for position, run in enumerate(jobs_run) if run.kwargs.get("tenant") == "small"]
    positions_of_large = [position for position, run in enumerate(jobs_run) if run.kwargs.get("tenant") == "large"]
    assert positions_of_small[0] < positions_of_large[-1], "the small tenant does not wait for all of the large one"


def test_the_schedule_of_the_page_enqueues_its_job() -> None:
    page = run_blocks("periodic", "daily_summary")
    synchronise(STORE, [entry for entry, _ in entries.values()], has_started=True)
    assert {(schedule.cron, schedule.timezone) for schedule in Schedule.objects.all()} == {
        ("0 9 * * mon-fri", "Europe/Berlin"),
        ("", "UTC"),
    }
    let_time_pass(timedelta(days=7).total_seconds())
    fire_all(tuple(Schedule.objects.values_list("digest", flat=True)))
    assert [new_job.kwargs for new_job in Job.objects.filter(task=page.daily_summary.name)] == [{"region": "EU"}]
    assert {run.status for run in run_jobs()} == {"completed"}


# The page about testing


def send_receipt(payment_id: int) -> str:
    address = Ledger.objects.get(pk=payment_id).entry
    mail.send_mail("Your receipt", "", None, [address])
    return address


@pytest.fixture
def shop(registry: Registry) -> Iterator[dict[str, Any]]:
    """The names that the examples on the page about testing need: a task, two views and payments."""
    task = job(name="shop.send_receipt", max_attempts=1)(send_receipt)

    def pay(request: HttpRequest) -> HttpResponse:
        if Decimal(request.POST["total"]) > 0:
            task.defer(payment_id=Payment.objects.create(email=request.POST["email"], total="").pk)
        return HttpResponse()

    def order(request: HttpRequest) -> HttpResponse:
        task.defer(Payment.objects.create(email="ada@example.com", total="").pk)
        return HttpResponse()

    class Payment:
        objects = SimpleNamespace(
            create=lambda email, total: Ledger.objects.create(entry=email), get=lambda: Ledger.objects.get()
        )

    urls = ModuleType("urls")
    urls.urlpatterns = [path("pay/", pay), path("order/", order)]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        yield {"send_receipt": task, "Payment": Payment, "mail": mail}


TESTS_ON_PAGE = {
    "PayTests": ["test_a_payment_defers_its_receipt", "test_a_refused_payment_defers_nothing"],
    "ReceiptTests": ["test_a_payment_gets_its_receipt"],
    "OrderTests": ["test_an_order_is_confirmed"],
    "AsyncTests": ["test_a_payment_gets_its_receipt", "test_an_order_is_confirmed"],
    "CleanUpTests": ["test_it_runs_three_times_a_day"],
    "PayOnCommitTests": ["test_deferred_on_commit"],
}


@pytest.mark.django_db(transaction=True)  # because a test case closes the connections at its end
def test_the_test_cases_of_the_page_pass(shop: dict[str, Any]) -> None:
    tests_run: dict[str, list[str]] = {}
    for test_case in cases_of("test", shop):
        names = unittest.defaultTestLoader.getTestCaseNames(test_case)
        result = unittest.TestResult()
        unittest.TestSuite(map(test_case, names)).run(result)
        assert not [*result.errors, *result.failures], [*result.errors, *result.failures][0][1]
        if names:  # one test case of the page has no tests: it only shows a setting
            tests_run[test_case.__name__] = list(names)
    assert tests_run == TESTS_ON_PAGE


def cases_of(page: str, project_names: Mapping[str, Any]) -> Iterator[type[TestCase]]:
    """Yield the test cases of a page in their order. Each runs with new names, because two have the same name."""
    (file,) = (file for file in PAGES if file.stem == page)
    for block in code_blocks(file):
        for name in re.findall(r"^class (\w+)\(TestCase\):", block.code, re.MULTILINE):
            reader = Reader(file.read_text())
            helpers = {helper_name: getattr(testing, helper_name) for helper_name in testing.__all__}
            reader.names.update({**project_names, **helpers})
            reader.run(block.code, f"{file}:{block.line}")
            yield reader.names[name]


@pytest.mark.parametrize("name", ["test_a_payment_gets_its_receipt", "test_an_order_is_confirmed"])
def test_the_pytest_functions_of_the_page_pass(shop: dict[str, Any], request: pytest.FixtureRequest, name: str) -> None:
    project_names = shop | {"assert_deferred": testing.assert_deferred}
    page_test = getattr(run_blocks("test", "test_a_payment_gets_its_receipt(client", project_names=project_names), name)
    page_test(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(page_test).parameters})


@pytest.mark.django_db(databases=["default", "other"])
def test_jobs_with_equal_values_of_the_page_are_in_the_same_database(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}
    page = run_blocks("databases", "sync")
    for number in range(10):
        placed_by_argument = page.sync.defer(account_id=number)
        placed_by_key = page.sync.using(shard_key=number).defer(account_id=number + 1)
        assert Job.objects.by_handle(placed_by_argument.handle) == placed_by_argument
        assert placed_by_argument.handle.partition(":")[0] == placed_by_key.handle.partition(":")[0]
    assert 0 < Job.objects.using("other").count() < 20, "each of the two databases has some of the 20 jobs"
