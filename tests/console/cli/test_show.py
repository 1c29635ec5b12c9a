"""`skipqueue show`: everything about single jobs, in a terminal or as JSON."""

import json
import re
from datetime import timedelta

import pytest

from django_skipqueue import job
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Queue
from django_skipqueue.queue.store import Store

from ...app.limit_rows import make_halted, make_keyed
from ...app.rows import make_job, make_worker
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = {
    "at": "2026-03-01T02:13:45+00:00",
    "attempt": 1,
    "worker": "web-1/1:0123456789ab",
    "duration_ms": 1900,
    "exception": "builtins.KeyError",
    "message": "'x' of pass-word",
    "traceback": "Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x' of pass-word\n",
}


def send(payment_id: int, token: str = "") -> None:
    """A task whose second argument is masked."""


@pytest.fixture
def retried_job(registry: Registry) -> Job:
    job(name="shop.send")(send)
    retried_job = make_job(
        "failed",
        task="shop.send",
        args=[42],
        kwargs={"token": "pass-word"},
        errors=[ERROR],
        metadata={"api_key": "k-123456"},
        last_error="KeyError: 'x' of pass-word",
        locked_by="web-1/1:0123456789ab",
    )
    Store.default().retry([retried_job.pk], by="ann@web-1", reason="fixed")
    return retried_job


def test_show_prints_the_arguments_the_errors_and_the_operations(retried_job: Job) -> None:
    out = skipqueue("show", retried_job.pk).out
    lines = out.splitlines()
    assert lines[0] == f"Job {retried_job.pk}: shop.send"
    assert "arguments     payment_id = 42" in lines
    assert '              token = "••••••"' in lines
    assert "worker        web-1/1" in lines
    assert "2026-03-01 02:13:45 +0000  attempt 1 failed after 1.9s on web-1/1" in lines
    assert "    KeyError: 'x' of ••••••" in lines
    assert any(line.endswith("retry by ann@web-1: fixed") for line in lines)
    assert lines.index("    KeyError: 'x' of ••••••") < len(lines) - 1


def test_show_prints_the_progress_and_the_logs() -> None:
    log = {
        "lease": 1, "attempt": 1, "worker": "w", "started": "2026-03-01T02:13:45+00:00", "dropped": 3,
        "lines": [[1000, "INFO", "shop", "first\nsecond"], [2000, "ERROR", "", "third"]],
    }  # fmt: skip
    shown_job = make_job("running", lease=1, progress={"lease": 1, "value": 0.4, "text": "40 of 100"}, logs=[log])
    lines = skipqueue("show", shown_job.pk).out.splitlines()
    assert "progress      40 % · 40 of 100" in lines
    assert any(line.startswith("status        running, for ") and line.endswith(", 40 %") for line in lines)
    start = lines.index("2026-03-01 02:13:45 +0000  log of attempt 1")
    assert lines[start + 1 : start + 5] == [
        "    … 3 earlier lines were not kept",
        "    2026-03-01 02:13:46 +0000 INFO shop first",
        "        second",
        "    2026-03-01 02:13:47 +0000 ERROR third",
    ]
    [shown] = skipqueue("show", "--json", shown_job.pk).objects
    assert shown["progress"] == {"value": 0.4, "text": "40 of 100", "at": None}
    assert shown["logs"][0]["lines"][1]["message"] == "third"
    assert shown["logs"][0]["dropped"] == 3


def test_show_masks_secrets(retried_job: Job) -> None:
    for result in (skipqueue("show", retried_job.pk), skipqueue("show", "--json", retried_job.pk)):
        assert result.code == 0
        assert "pass-word" not in result.out
        assert "k-123456" not in result.out


def test_show_prints_a_job_as_json(retried_job: Job) -> None:
    [shown] = skipqueue("show", "--json", retried_job.pk).objects
    assert (shown["id"], shown["status"], shown["args"]) == (retried_job.pk, "queued", [42])
    assert shown["errors"][0]["message"] == "'x' of ••••••"
    assert shown["operations"][0]["by"] == "ann@web-1"


def test_several_jobs_are_shown_in_the_order_of_their_ids() -> None:
    first, second = make_job(), make_job("completed", result={"sent": 1})
    assert [shown["id"] for shown in skipqueue("show", "--json", second.pk, first.pk).objects] == [first.pk, second.pk]
    out = skipqueue("show", second.pk, f"#{first.pk}").out
    assert out.index(f"Job {first.pk}") < out.index(f"Job {second.pk}")
    assert f"result        {json.dumps({'sent': 1})}" in out


def test_show_names_an_unknown_id() -> None:
    result = skipqueue("show", make_job().pk, 999_999_999)
    assert (result.code, result.out) == (Exit.ERROR, "")
    assert "There is no job 999999999." in result.err


def test_a_row_that_another_program_wrote_is_shown_as_far_as_it_is_valid() -> None:
    shown_job = make_job(
        "failed", args={"no": "list"}, kwargs=["no dict"], errors=[1, {"at": 3}, {"at": "x"}, {}], task="a\x1b\n"
    )
    for options in ([], ["--json"]):
        result = skipqueue("show", shown_job.pk, *options)
        assert result.code == 0
        assert result.out.replace("\n", "").isprintable()


def test_show_says_why_a_job_waits_with_its_batch_and_its_keys() -> None:
    halting_job = make_halted("shop", waiting=0)
    waiting_job = make_keyed("shop", kind="halting", run_after=timedelta(seconds=-46), batch_id=7, rate_key="psp")
    lines = skipqueue("show", waiting_job.pk).out.splitlines()
    [status_line] = [line for line in lines if line.startswith("status")]
    assert re.match(r"status        blocked, for 4\d(\.\d)?s$", status_line)
    explanation = f"Its sequence “shop” has halted because job {halting_job.pk} failed. Retry or discard that job."
    assert f"{'':14}{explanation}" in lines
    assert {"batch         7", "limit key     shop", "rate key      psp"} <= set(lines)
    [shown] = skipqueue("show", waiting_job.pk, "--json").objects
    assert (shown["why_it_waits"], shown["batch_id"], shown["limit_key"]) == (explanation, 7, "shop")


def test_show_says_that_no_worker_serves_the_queue_or_that_the_queue_is_paused() -> None:
    queued = make_job(queue_name="mail")
    assert "It waits for a worker, but no worker is alive." in skipqueue("show", queued.pk).out
    make_worker(queues=["mail"])
    assert "It is the next job in the queue “mail”" in skipqueue("show", queued.pk).out
    Queue.pause("mail", reason="the server is down")
    assert "The queue “mail” is paused until it is resumed: the server is down" in skipqueue("show", queued.pk).out


def test_attempt_numbers_continue_after_a_manual_retry(retried_job: Job) -> None:
    late = ERROR | {"at": "2126-03-01T02:13:45+00:00"}  # after the manual retry
    Job.objects.filter(pk=retried_job.pk).update(attempts=1, errors=[ERROR, late])
    out = skipqueue("show", retried_job.pk).out
    assert "  attempt 1 failed" in out
    assert "  attempt 2 failed" in out
    assert "attempts      1 of 10, 1 before the manual retry" in out


def test_an_attempt_that_an_operator_cancelled_has_not_failed() -> None:
    running = make_job("running", task="shop.send")
    Store.default().cancel([running.pk], by="ann")
    Job.objects.filter(pk=running.pk).update(errors=[ERROR | {"at": "2126-03-01T02:13:45+00:00"}])
    out = skipqueue("show", running.pk).out
    assert "  attempt 1 cancelled after 1.9s on web-1/1" in out
    assert "attempt 1 failed" not in out
