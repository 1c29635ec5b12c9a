"""`skipqueue list`: which jobs it finds, and how it shows them."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils.timezone import localtime

from django_skipqueue import job
from django_skipqueue.console import search
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.search import cause_text
from django_skipqueue.jobs.registry import Registry

from ...app.failing import BAD_VALUE, UNAVAILABLE, make_failing
from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

TIME_COLUMNS = {
    "queued": "run_after",
    "scheduled": "run_after",
    "blocked": "run_after",
    "running": "locked_at",
    "failed": "finished_at",
    "completed": "finished_at",
}
"""A time column for each status. The list of most statuses is sorted by this column."""


def listed_ids(*arguments: str) -> list[int]:
    return [listed_job["id"] for listed_job in skipqueue("list", "--json", *arguments).objects]


def send(payment_id: int, token: str = "") -> None:
    """A task whose second argument is masked."""


def test_the_list_begins_with_the_newest_job() -> None:
    first, second = make_job(), make_job("failed")
    assert listed_ids() == [second.pk, first.pk]


@pytest.mark.parametrize("option", ["--failed", "--status=failed"])
def test_the_list_can_be_limited_to_one_status(option: str) -> None:
    make_job()
    failed = make_job("failed")
    assert listed_ids(option) == [failed.pk]


def test_retrying_jobs_are_not_listed_among_the_scheduled_jobs() -> None:
    scheduled, retrying = make_job("scheduled"), make_job("scheduled", attempts=1)
    assert listed_ids("--status", "scheduled") == [scheduled.pk]
    assert listed_ids("--retrying") == [retrying.pk]


def test_each_option_narrows_the_list() -> None:
    matching_job = make_job(
        "failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 7}}, last_error="KeyError: x"
    )
    make_job("failed", queue_name="other", task="a.send", kwargs={"order": {"id": 7}})
    make_job("failed", queue_name="mail", task="b.send", kwargs={"order": {"id": 7}})
    make_job("failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 8}})
    make_job("failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 7}}, finished_at=timedelta(hours=-2))
    options = ("--queue", "mail", "--task", "a.send", "--arg", "order.id=7", "--since", "1h")
    assert listed_ids("--failed", *options) == listed_ids(*options, "--search", "KeyError") == [matching_job.pk]


@pytest.mark.parametrize(("status", "column"), [("queued", "enqueued_at"), ("running", "locked_at")])
def test_since_compares_the_time_that_matters_for_the_status(status: str, column: str) -> None:
    earlier: dict[str, Any] = {column: timedelta(hours=-2)}
    make_job(status, **earlier)
    matching_job = make_job(status)
    assert listed_ids("--status", status, "--since", "1h30m") == [matching_job.pk]


def test_since_and_until_together_choose_failed_jobs_between_two_times() -> None:
    now = localtime().replace(microsecond=0)
    jobs = [make_job("failed", finished_at=now - timedelta(days=days, minutes=1)) for days in range(4)]
    two_days_ago, yesterday = (f"{now - timedelta(days=days):%Y-%m-%d %H:%M:%S}" for days in (2, 1))
    assert listed_ids("--failed", "--since", two_days_ago, "--until", yesterday) == [jobs[1].pk]
    assert listed_ids("--failed", "--until", "2d") == [jobs[2].pk, jobs[3].pk]


def test_since_and_until_together_choose_queued_jobs_between_two_times() -> None:
    jobs = [make_job(enqueued_at=timedelta(hours=-hours)) for hours in (2, 1, 0)]
    assert listed_ids("--since", "90m", "--until", "30m") == [jobs[1].pk]


def test_jobs_are_found_by_the_exception_of_their_last_error() -> None:
    failed, retrying = make_failing(UNAVAILABLE), make_failing(UNAVAILABLE, "scheduled")
    make_failing(BAD_VALUE)
    for name in ("Unavailable", "psp.errors.Unavailable", cause_text(UNAVAILABLE)):
        assert listed_ids("--exception", name) == [retrying.pk, failed.pk]
        assert listed_ids("--failed", "--exception", name) == [failed.pk]
    assert listed_ids("--exception", "psp.errors.Unavailable in elsewhere") == []
    assert listed_ids("--exception", "available") == []


def test_the_option_task_takes_the_end_of_the_name(registry: Registry) -> None:
    job(name="payments.jobs.send")(send)
    matching_job = make_job(task="payments.jobs.send")
    assert listed_ids("--task", "send") == [matching_job.pk]


def test_secrets_are_masked_in_the_list(registry: Registry) -> None:
    job(name="send")(send)
    make_job(
        "failed", task="send", args=[42, "s3cret-text"], kwargs={"password": "pass-word"}, last_error="s3cret-text!"
    )
    for result in (skipqueue("list"), skipqueue("list", "--json")):
        assert "s3cret-text" not in result.out
        assert "pass-word" not in result.out
    assert 'payment_id=42, token="••••••", password="••••••" · ••••••!' in skipqueue("list").out


def test_a_row_can_neither_start_a_line_nor_control_the_terminal() -> None:
    make_job(task="a\n\x1b[31m", queue_name="q\x9b", kwargs={"a\nb": "\x1b]0;x\x07"})
    result = skipqueue("list")
    assert len(result.out.splitlines()) == 2
    assert result.out.replace("\n", "").isprintable()


def test_the_list_mentions_that_there_are_more_jobs_than_its_limit() -> None:
    ids = [make_job().pk for _ in range(3)]
    result = skipqueue("list", "--json", "--limit", "2")
    assert [listed_job["id"] for listed_job in result.objects] == ids[:0:-1]  # the newest two of the three jobs
    assert result.err == "There are more than 2 jobs; --limit shows more.\n"


class TestWindows:
    @pytest.fixture(autouse=True)
    def _small_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search, "WINDOW_SIZE", 2)

    def test_without_all_only_the_first_jobs_are_searched(self) -> None:
        make_job(task="deep")
        for _ in range(4):
            make_job()
        result = skipqueue("list", "--task", "deep")
        assert (result.code, result.out) == (Exit.PARTIAL, "")
        assert result.err == "No job found. Not searched: 3 more jobs; --all searches the whole list.\n"

    @pytest.mark.parametrize("status", TIME_COLUMNS)
    def test_with_all_every_job_is_searched(self, status: str) -> None:
        deep_job = make_job(status, task="deep")
        for minute in range(5):
            time: dict[str, Any] = {TIME_COLUMNS[status]: timedelta(minutes=minute - 3)}
            make_job(status, **time)
        for options in (("--status", status), ()):
            assert listed_ids("--task", "deep", "--all", *options) == [deep_job.pk]
        assert sorted(listed_ids("--status", status, "--all")) == list(range(deep_job.pk, deep_job.pk + 6))


def test_the_list_exits_with_3_if_no_job_is_found() -> None:
    result = skipqueue("list", "--failed")
    assert (result.code, result.out, result.err) == (3, "", "No job found.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "tests.app.jobs.nop"], "Did you mean 'tests.app.jobs.noop'?"),
        (["--task", "nooop"], "Did you mean 'tests.app.jobs.noop'?"),
        (["--queue", "defalt"], "Did you mean 'default'?"),
        (["--queue", "zzz"], "There are: "),
    ],
)
def test_an_unknown_task_or_queue_is_an_error_with_a_suggestion(arguments: list[str], message: str) -> None:
    result = skipqueue("list", *arguments)
    assert (result.code, result.out) == (Exit.ERROR, "")
    assert message in result.err
