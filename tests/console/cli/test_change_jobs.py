"""The subcommands that change jobs (verbs), such as `skipqueue retry`."""

import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.console import counts
from django_skipqueue.console import search as window
from django_skipqueue.console.cli import change_jobs
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.verbs.table import RETRY, RUN_AGAIN
from django_skipqueue.console.verbs.verb import Verb
from django_skipqueue.models import Job

from ...app.limit_rows import make_halted
from ...app.rows import STATUSES, make_job, multiply, state
from ...app.sessions import Session
from ...app.verbs import VERBS
from ...harness.languages import use_translations
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

REQUIRED_OPTIONS = {
    "postpone": ["--for", "2h"],
    "reschedule": ["--to", "2h"],
    "change-queue": ["--to", "mail"],
    "change-priority": ["--to", "-7"],
}

STATUS_AFTER = {
    "retry": "queued",
    "run-now": "queued",
    "postpone": "scheduled",
    "reschedule": "scheduled",
    "discard": "discarded",
    "cancel": "discarded",
    "run-again": "queued",
    "delete": "deleted",
}
"""The status of a job after each verb."""

every_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.slug)


def status_that_allows(verb: Verb) -> str:
    return next(iter(verb.statuses))


def status_of(job: Job) -> str:
    status = Job.objects.filter(pk=job.pk).values_list("status", flat=True).first()
    return str(status or "deleted")


@every_verb
def test_a_verb_changes_one_job_without_a_question_and_records_user_and_reason(verb: Verb) -> None:
    job = make_job(status_that_allows(verb))
    reason = ["--reason", "fixed"] if verb.leaves_rows else []
    result = skipqueue(verb.slug, f"#{job.pk}", *reason, *REQUIRED_OPTIONS.get(verb.slug, []))
    changed = job if verb is not RUN_AGAIN else Job.objects.exclude(pk=job.pk).get()
    assert (result.code, result.err) == (0, f"1 job {verb.done}.\n")
    assert result.out == ("" if changed == job else f"{changed.pk}\n")
    assert status_of(changed) == STATUS_AFTER.get(verb.slug, job.status)
    if verb.leaves_rows:
        changed.refresh_from_db()
        [operation] = changed.operations or []
        assert (operation["verb"], operation["reason"]) == (verb.name, "fixed")
        assert "@" in operation["by"]


@every_verb
def test_a_job_whose_status_does_not_allow_the_verb_is_skipped(verb: Verb) -> None:
    jobs_of_other_statuses = [make_job(status) for status in STATUSES if status not in verb.statuses]
    before = [state(job) for job in jobs_of_other_statuses]
    result = skipqueue(
        verb.slug, *(job.pk for job in jobs_of_other_statuses), "--yes", *REQUIRED_OPTIONS.get(verb.slug, [])
    )
    assert result.code == Exit.NEGATIVE
    assert result.err.startswith(f"0 jobs {verb.done}, {len(jobs_of_other_statuses)} skipped: ")
    assert [state(job) for job in jobs_of_other_statuses] == before


@every_verb
def test_an_id_that_no_job_has_is_named_and_nothing_is_changed(verb: Verb) -> None:
    job = make_job(status_that_allows(verb))
    before = state(job)
    result = skipqueue(verb.slug, job.pk, 999_999_999, "--yes", *REQUIRED_OPTIONS.get(verb.slug, []))
    assert result.code == Exit.ERROR
    assert "There is no job 999999999." in result.err
    assert state(job) == before


@every_verb
def test_a_verb_needs_either_ids_or_options_that_choose_jobs(verb: Verb) -> None:
    options = REQUIRED_OPTIONS.get(verb.slug, [])
    assert skipqueue(verb.slug, "--all", "--yes", *options).code == Exit.USAGE
    assert skipqueue(verb.slug, "1", "--task", "x", *options).code == Exit.USAGE


@every_verb
def test_a_dry_run_counts_and_writes_nothing(verb: Verb) -> None:
    job = make_job(status_that_allows(verb), task="a.b")
    before = state(job)
    result = skipqueue(verb.slug, "--status", job.status, "--dry-run", "--json", *REQUIRED_OPTIONS.get(verb.slug, []))
    assert result.objects == [{"status": job.status, "task": "a.b", "jobs": 1, "would_change": True}]
    assert (result.code, result.err) == (0, f"1 job would be {verb.done}.\n")
    assert state(job) == before


def test_a_verb_prints_the_numbers_of_changed_and_skipped_jobs_as_json() -> None:
    failed_jobs = [make_job("failed") for _ in range(2)]
    completed_job = make_job("completed")
    result = skipqueue("retry", *(job.pk for job in (*failed_jobs, completed_job)), "--yes", "--json")
    assert (result.code, result.objects) == (0, [{"changed": 2, "skipped": 1, "is_partial": False}])
    assert result.err == "2 jobs retried, 1 skipped: 1 is already completed.\n"
    result = skipqueue("retry", completed_job.pk, "--json")
    assert (result.code, result.objects) == (Exit.NEGATIVE, [{"changed": 0, "skipped": 1, "is_partial": False}])


@pytest.mark.parametrize(
    ("verb", "wrong_value"),
    [
        ("postpone", "-1h"),
        ("reschedule", "tomorrow"),
        ("change-queue", "a,b"),
        ("change-priority", "101"),
        ("change-priority", "high"),
    ],
)
def test_a_value_that_no_job_can_have_is_refused(verb: str, wrong_value: str) -> None:
    job = make_job("queued")
    before = state(job)
    option, _ = REQUIRED_OPTIONS[verb]
    result = skipqueue(verb, job.pk, f"{option}={wrong_value}")
    assert state(job) == before
    assert result.err.startswith(f"Error: argument {option}: ")


def test_reschedule_takes_a_time_or_a_duration(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = make_job("queued")
    assert skipqueue("reschedule", job.pk, "--to", "2100-01-01 14:00").code == 0
    job.refresh_from_db()
    assert job.run_after.isoformat() == "2100-01-01T13:00:00+00:00"
    assert skipqueue("reschedule", job.pk, "--to", "1h").code == 0
    assert Job.objects.filter(run_after__range=(Now() + timedelta(minutes=59), Now() + timedelta(minutes=60))).exists()


def test_change_queue_and_change_priority_take_a_value() -> None:
    jobs = [make_job("queued", task="a.b"), make_job("scheduled", task="a.b"), make_job("queued")]
    assert skipqueue("change-queue", "--task", "a.b", "--to", "mail", "--yes").err == "2 jobs put into another queue.\n"
    assert skipqueue("change-priority", "--task", "a.b", "--to", "-7", "--yes").code == 0
    assert [(state(job)["queue_name"], state(job)["priority"]) for job in jobs] == [("mail", -7)] * 2 + [("default", 0)]
    second_result = skipqueue("change-queue", jobs[0].pk, "--to", "mail")
    assert second_result.err == "0 jobs put into another queue, 1 skipped: 1 already in this queue, or just changed.\n"


def test_run_again_needs_a_status_and_leaves_the_jobs_as_they_are() -> None:
    jobs = [make_job("completed", task="a.b", kwargs={"n": number}) for number in range(2)]
    before = [state(job) for job in jobs]
    assert skipqueue("run-again", "--task", "a.b", "--yes").code == Exit.USAGE
    result = skipqueue("run-again", "--task", "a.b", "--status", "completed", "--yes")
    assert (result.code, result.out, result.err) == (0, "", "2 jobs run again.\n")
    assert [job.kwargs for job in Job.objects.queued().order_by("pk")] == [{"n": 0}, {"n": 1}]
    assert [state(job) for job in jobs] == before


def test_a_verb_says_which_session_has_locked_the_row_of_a_job(session: Callable[[], Session]) -> None:
    """Another session has locked the first job's row. Another job holds the second job's unique key."""
    locked_job, job_with_taken_key = make_job("failed"), make_job("failed", unique_key="k")
    make_job(unique_key="k")
    locking_session = session()
    locking_session.begin()
    locking_session(lambda: list(Job.objects.select_for_update().filter(pk=locked_job.pk)))
    result = skipqueue("retry", locked_job.pk)
    assert result.code == Exit.NEGATIVE
    locked_by_line, summary = result.err.splitlines()
    assert re.fullmatch(
        r"Its row is locked by session (\d+) \(.*, idle in transaction\)\. "
        r"To end that: python manage\.py dbshell -- -c 'SELECT pg_terminate_backend\(\1\);'",
        locked_by_line,
    )
    assert summary == "0 jobs retried, 1 skipped: 1 whose row is locked by a session of the database."
    assert skipqueue("retry", "--failed", "--yes", "--json").objects == [
        {"changed": 0, "skipped": 2, "is_partial": False}
    ]
    locking_session.rollback()
    assert skipqueue("retry", locked_job.pk, job_with_taken_key.pk, "--yes").err.startswith(
        "1 job retried, 1 skipped: 1 whose unique key"
    )


def test_verbs_print_english_whatever_the_language_of_the_project(settings: Any, tmp_path: Path) -> None:
    """The admin translates the words of the verbs. The command joins them to English sentences, so it must not."""
    use_translations(settings, tmp_path, {"retried": "provita"})
    assert skipqueue("retry", make_job("failed").pk).err == "1 job retried.\n"


@pytest.mark.parametrize(
    ("verb", "statuses"),
    [
        ("retry", {"failed"}),
        ("run-now", {"scheduled"}),
        ("postpone", {"scheduled", "queued", "blocked"}),
        ("reschedule", {"scheduled", "queued", "blocked"}),
        ("change-queue", {"scheduled", "queued", "blocked"}),
        ("discard", {"scheduled", "queued", "blocked"}),
        ("cancel", {"scheduled", "queued", "blocked", "running"}),
    ],
)
def test_without_the_option_status_each_verb_changes_jobs_of_its_usual_statuses(verb: str, statuses: set[str]) -> None:
    jobs = {status: make_job(status, task="a.b") for status in STATUSES} | {
        "retrying": make_job("scheduled", attempts=1)
    }
    before = {name: state(job) for name, job in jobs.items()}
    skipqueue(verb, "--task", "a.b", "--yes", *REQUIRED_OPTIONS.get(verb, []))
    changed = {name for name, job in jobs.items() if name != "retrying" and state(job) != before[name]}
    assert changed == statuses


def test_delete_needs_a_status() -> None:
    make_job("completed", task="a.b")
    result = skipqueue("delete", "--task", "a.b", "--yes")
    assert (result.code, Job.objects.count()) == (Exit.USAGE, 1)
    assert "--status" in result.err


def test_without_a_terminal_several_jobs_are_changed_only_with_yes() -> None:
    jobs = [make_job("failed") for _ in range(2)]
    for arguments in (["--failed"], [job.pk for job in jobs]):
        result = skipqueue("retry", *arguments)
        assert result.code == Exit.USAGE
        assert "whether to retry 2 jobs. Use --yes to do it without asking." in result.err
    assert Job.objects.failed().count() == 2


@pytest.mark.parametrize(("answer", "status", "code"), [("y", "queued", 0), ("n", "failed", 3), ("", "failed", 3)])
def test_on_a_terminal_several_jobs_are_changed_after_a_question(
    manage: Callable[..., Any], answer: str, status: str, code: int
) -> None:
    jobs = [make_job("failed"), make_job("completed")]
    process = manage("skipqueue", "retry", *(str(job.pk) for job in jobs), terminal=True)
    process.wait_for("Retry 1 of 2 jobs? [y/N] ")
    process.type(f"{answer}\n")
    assert process.wait() == code
    assert status_of(jobs[0]) == status
    process.wait_for("1 job retried, 1 skipped: 1 is already completed." if code == 0 else "Nothing was changed.")


def test_the_options_choose_the_jobs() -> None:
    matching_job = make_job("failed", kwargs={"payment_id": 42}, queue_name="mail")
    other_jobs = [make_job("failed", kwargs={"payment_id": 43}), make_job("failed", finished_at=timedelta(hours=-2))]
    result = skipqueue("retry", "--failed", "--arg", "payment_id=42", "--since", "1h", "--queue", "mail", "--yes")
    assert (result.code, result.err) == (0, "1 job retried.\n")
    assert [status_of(job) for job in (matching_job, *other_jobs)] == ["queued", "failed", "failed"]


def test_retries_can_be_spread() -> None:
    for _ in range(3):
        make_job("failed")
    assert skipqueue("retry", "--failed", "--over", "1h", "--yes").code == 0
    due_times = Job.objects.values_list("run_after", flat=True)
    assert len(set(due_times)) == 3
    assert max(due_times) - min(due_times) < timedelta(hours=1)


def test_a_job_whose_unique_key_is_held_is_counted_as_skipped() -> None:
    make_job("failed", unique_key="k")
    make_job(unique_key="k")
    result = skipqueue("retry", "--failed", "--yes")
    assert result.code == Exit.NEGATIVE
    assert result.err.startswith("0 jobs retried, 1 skipped: 1 whose unique key another job holds")


def test_a_retry_of_one_job_names_the_job_that_holds_its_unique_key() -> None:
    failed, holder = make_job("failed", unique_key="k"), make_job(unique_key="k")
    result = skipqueue("retry", failed.pk)
    assert result.code == Exit.NEGATIVE
    assert f"job {holder.pk}, which is queued, holds the unique key “k”." in result.err


class TestWindows:
    @pytest.fixture(autouse=True)
    def _small_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        monkeypatch.setattr(change_jobs, "BATCH_ROWS", 1)

    @pytest.fixture
    def jobs(self) -> list[Job]:
        return [make_job("failed", finished_at=timedelta(minutes=-minute)) for minute in range(7)]

    @pytest.mark.parametrize("option", ["--yes", "--dry-run"])
    def test_without_all_only_the_first_jobs_of_the_list_are_searched_and_changed(
        self, jobs: list[Job], option: str
    ) -> None:
        result = skipqueue("retry", "--failed", "--task", jobs[0].task, option)
        retried = "queued" if option == "--yes" else "failed"
        assert [status_of(job) for job in jobs] == [retried] * 2 + ["failed"] * 5
        assert result.code == Exit.PARTIAL
        last = result.err.splitlines()[-1]
        assert last.startswith("2 jobs ")
        assert last.endswith("retried. Not searched: 5 more jobs; --all searches the whole list.")

    def test_an_unfinished_search_that_finds_nothing_exits_with_4(self, jobs: list[Job]) -> None:
        result = skipqueue("retry", "--failed", "--search", "nosuch", "--yes")
        assert (result.code, result.err[:40]) == (4, "0 jobs retried. Not searched: 5 more job")

    def test_the_number_of_jobs_that_were_not_searched_may_be_an_estimate(
        self, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        monkeypatch.setattr(window, "expected", lambda jobs: 1_234_567)
        result = skipqueue("retry", "--failed", "--task", jobs[0].task, "--yes")
        assert "Not searched: about 1,200,000 more jobs;" in result.err

    @pytest.mark.parametrize(
        "options", [["--all", "--task", "tests.app.jobs.noop"], [], ["--queue", "default"], ["--since", "1d"]]
    )
    def test_with_all_or_without_a_search_the_whole_list_is_changed(self, jobs: list[Job], options: list[str]) -> None:
        result = skipqueue("retry", "--failed", "--yes", *options)
        assert (result.code, result.err) == (0, "7 jobs retried.\n")

    @pytest.mark.parametrize("status", ["scheduled", "queued"])
    def test_no_job_is_postponed_twice(self, status: str) -> None:
        for minute in range(7):
            make_job(status, run_after=timedelta(minutes=minute))
        result = skipqueue("postpone", "--status", status, "--for", "3m30s", "--all", "--yes")
        postponed = Job.objects.filter(operations__isnull=False)
        assert result.err.startswith(f"{postponed.count()} jobs postponed")
        assert {len(job.operations or []) for job in postponed} == {1}
        assert postponed.values("run_after").distinct().count() == 1

    def test_jobs_that_are_enqueued_meanwhile_are_left_out(
        self, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        added_jobs: list[Job] = []
        retry = RETRY.change

        def fail_another_job_and_retry(*arguments: Any, **options: Any) -> Any:
            added_jobs.append(make_job("failed", finished_at=timedelta(minutes=-30)))
            return retry(*arguments, **options)

        monkeypatch.setitem(vars(RETRY), "change", fail_another_job_and_retry)
        assert skipqueue("retry", "--failed", "--yes", "--all").err == "7 jobs retried.\n"
        assert {status_of(job) for job in added_jobs} == {"failed"}


def test_ctrl_c_ends_a_verb_after_a_batch_and_prints_how_many_jobs_were_changed(manage: Callable[..., Any]) -> None:
    multiply(make_job("failed"), 29_999)
    process = manage("skipqueue", "retry", "--failed", "--all", "--yes", terminal=True)
    process.wait_for("000 of 30,000 jobs retried …")
    process.send(signal.SIGINT)
    assert process.wait() == Exit.INTERRUPTED
    process.wait_for("Interrupted. Run the command again to continue.")
    retried = Job.objects.queued().count()
    assert 0 < retried < 30_000
    assert f"{retried:,} jobs retried." in process.log
    process = manage("skipqueue", "retry", "--failed", "--all", "--yes")
    assert process.wait() == 0
    assert not Job.objects.failed().exists()


@pytest.mark.parametrize("by_id", [True, False])
def test_discard_lets_a_halted_sequence_go_on_and_skips_other_failed_jobs(by_id: bool) -> None:
    halting_job, other_job = make_halted("shop"), make_job("failed")
    result = skipqueue("discard", *([halting_job.pk, other_job.pk] if by_id else ["--status", "failed"]), "--yes")
    assert (result.code, result.err) == (0, "1 job discarded, 1 skipped: 1 is already failed.\n")
    assert (status_of(halting_job), status_of(other_job)) == ("discarded", "failed")


def test_a_dry_run_of_discard_counts_only_failed_jobs_that_halt_a_sequence() -> None:
    make_halted("shop", task="a.b")
    make_job("failed", task="a.b")
    result = skipqueue("discard", "--status", "failed", "--dry-run", "--json")
    assert sorted(group["would_change"] for group in result.objects) == [False, True]
    assert result.err == "1 job would be discarded, 1 skipped: 1 is already failed.\n"
