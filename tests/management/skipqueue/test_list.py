"""`skipqueue list`: which jobs it finds, and how it shows them."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils.timezone import localtime

from django_skipqueue import job
from django_skipqueue.console import search as window
from django_skipqueue.console.search import cause_text
from django_skipqueue.jobs.registry import Registry

from ...app.failing import BAD_VALUE, UNAVAILABLE, make_failing
from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

COLUMNS = {
    "queued": "run_after",
    "scheduled": "run_after",
    "blocked": "run_after",
    "running": "locked_at",
    "failed": "finished_at",
    "completed": "finished_at",
}
"""A time of the jobs in each status. For most statuses it orders their list."""


def listed(*arguments: str) -> list[int]:
    return [each["id"] for each in skipqueue("list", "--json", *arguments).objects]


def send(payment_id: int, token: str = "") -> None:
    """A task whose second argument is masked."""


def test_it_lists_the_newest_first() -> None:
    first, second = make_job(), make_job("failed")
    assert listed() == [second.pk, first.pk]


@pytest.mark.parametrize("option", ["--failed", "--status=failed"])
def test_it_lists_the_jobs_in_a_status(option: str) -> None:
    make_job()
    failed = make_job("failed")
    assert listed(option) == [failed.pk]


def test_a_retrying_job_is_not_a_scheduled_one() -> None:
    scheduled, retrying = make_job("scheduled"), make_job("scheduled", attempts=1)
    assert listed("--status", "scheduled") == [scheduled.pk]
    assert listed("--retrying") == [retrying.pk]


def test_every_option_narrows_the_list() -> None:
    wanted = make_job("failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 7}}, last_error="KeyError: x")
    make_job("failed", queue_name="other", task="a.send", kwargs={"order": {"id": 7}})
    make_job("failed", queue_name="mail", task="b.send", kwargs={"order": {"id": 7}})
    make_job("failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 8}})
    make_job("failed", queue_name="mail", task="a.send", kwargs={"order": {"id": 7}}, finished_at=timedelta(hours=-2))
    options = ("--queue", "mail", "--task", "a.send", "--arg", "order.id=7", "--since", "1h")
    assert listed("--failed", *options) == listed(*options, "--search", "KeyError") == [wanted.pk]


@pytest.mark.parametrize(("status", "column"), [("queued", "enqueued_at"), ("running", "locked_at")])
def test_since_is_the_time_that_matters_in_the_status(status: str, column: str) -> None:
    earlier: dict[str, Any] = {column: timedelta(hours=-2)}
    make_job(status, **earlier)
    wanted = make_job(status)
    assert listed("--status", status, "--since", "1h30m") == [wanted.pk]


def test_a_time_may_have_two_ends() -> None:
    now = localtime().replace(microsecond=0)
    made = [make_job("failed", finished_at=now - timedelta(days=days, minutes=1)) for days in range(4)]
    two_days_ago, yesterday = (f"{now - timedelta(days=days):%Y-%m-%d %H:%M:%S}" for days in (2, 1))
    assert listed("--failed", "--since", two_days_ago, "--until", yesterday) == [made[1].pk]
    assert listed("--failed", "--until", "2d") == [made[2].pk, made[3].pk]


def test_waiting_jobs_have_a_time_with_two_ends_as_well() -> None:
    made = [make_job(enqueued_at=timedelta(hours=-hours)) for hours in (2, 1, 0)]
    assert listed("--since", "90m", "--until", "30m") == [made[1].pk]


def test_jobs_are_found_by_the_exception_of_their_last_error() -> None:
    failed, retrying = make_failing(UNAVAILABLE), make_failing(UNAVAILABLE, "scheduled")
    make_failing(BAD_VALUE)
    for name in ("Unavailable", "psp.errors.Unavailable", cause_text(UNAVAILABLE)):
        assert listed("--exception", name) == [retrying.pk, failed.pk]
        assert listed("--failed", "--exception", name) == [failed.pk]
    assert listed("--exception", "psp.errors.Unavailable in elsewhere") == []
    assert listed("--exception", "available") == []


def test_the_end_of_a_tasks_name_is_enough(registry: Registry) -> None:
    job(name="payments.jobs.send")(send)
    wanted = make_job(task="payments.jobs.send")
    assert listed("--task", "send") == [wanted.pk]


def test_secrets_are_masked(registry: Registry) -> None:
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


def test_more_jobs_than_the_limit_are_mentioned() -> None:
    made = [make_job().pk for _ in range(3)]
    result = skipqueue("list", "--json", "--limit", "2")
    assert [each["id"] for each in result.objects] == made[:0:-1]
    assert result.err == "There are more than 2; --limit shows more.\n"


class TestWindows:
    @pytest.fixture(autouse=True)
    def _small_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)

    def test_only_the_first_is_searched_and_it_says_so(self) -> None:
        make_job(task="deep")
        for _ in range(4):
            make_job()
        result = skipqueue("list", "--task", "deep")
        assert (result.code, result.out) == (4, "")
        assert result.err == "No job found. Not looked at: 3 more jobs; --all goes on to the end of the list.\n"

    @pytest.mark.parametrize("status", COLUMNS)
    def test_all_goes_on_to_the_end(self, status: str) -> None:
        deep = make_job(status, task="deep")
        for minute in range(5):
            moment: dict[str, Any] = {COLUMNS[status]: timedelta(minutes=minute - 3)}
            make_job(status, **moment)
        for options in (("--status", status), ()):
            assert listed("--task", "deep", "--all", *options) == [deep.pk]
        assert sorted(listed("--status", status, "--all")) == list(range(deep.pk, deep.pk + 6))


def test_nothing_found_is_an_exit_code() -> None:
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
def test_a_name_that_nothing_has_is_an_error_with_a_suggestion(arguments: list[str], message: str) -> None:
    result = skipqueue("list", *arguments)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
