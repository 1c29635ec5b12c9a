"""`skipqueue show`."""

import json

import pytest

from django_skipqueue import job
from django_skipqueue.models import Job
from django_skipqueue.store import Store
from django_skipqueue.tasks.registry import Registry

from ...app.rows import make_job
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
def failed(registry: Registry) -> Job:
    job(name="shop.send")(send)
    failed = make_job(
        "failed",
        task="shop.send",
        args=[42],
        kwargs={"token": "pass-word"},
        errors=[ERROR],
        metadata={"api_key": "k-123456"},
        last_error="KeyError: 'x' of pass-word",
        locked_by="web-1/1:0123456789ab",
    )
    Store.default().retry([failed.pk], by="ann@web-1", reason="fixed")
    return failed


def test_it_shows_the_arguments_the_errors_and_the_operations(failed: Job) -> None:
    out = skipqueue("show", failed.pk).out
    lines = out.splitlines()
    assert lines[0] == f"Job {failed.pk}: shop.send"
    assert "arguments     payment_id = 42" in lines
    assert '              token = "••••••"' in lines
    assert "worker        web-1/1" in lines
    assert "2026-03-01 02:13:45 +0000  attempt 1 failed after 1.9s on web-1/1" in lines
    assert "    KeyError: 'x' of ••••••" in lines
    assert any(line.endswith("retry by ann@web-1: fixed") for line in lines)
    assert lines.index("    KeyError: 'x' of ••••••") < len(lines) - 1


def test_it_shows_the_progress_and_the_logs() -> None:
    log = {
        "lease": 1, "attempt": 1, "worker": "w", "started": "2026-03-01T02:13:45+00:00", "dropped": 3,
        "lines": [[1000, "INFO", "shop", "first\nsecond"], [2000, "ERROR", "", "third"]],
    }  # fmt: skip
    made = make_job("running", lease=1, progress={"lease": 1, "value": 0.4, "text": "40 of 100"}, logs=[log])
    lines = skipqueue("show", made.pk).out.splitlines()
    assert "progress      40 % · 40 of 100" in lines
    assert any(line.startswith("status        running, for ") and line.endswith(", 40 %") for line in lines)
    start = lines.index("2026-03-01 02:13:45 +0000  log of attempt 1")
    assert lines[start + 1 : start + 5] == [
        "    … 3 earlier lines are not kept",
        "    2026-03-01 02:13:46 +0000 INFO shop first",
        "        second",
        "    2026-03-01 02:13:47 +0000 ERROR third",
    ]
    [shown] = skipqueue("show", "--json", made.pk).objects
    assert shown["progress"] == {"value": 0.4, "text": "40 of 100", "at": None}
    assert shown["logs"][0]["lines"][1]["message"] == "third"
    assert shown["logs"][0]["dropped"] == 3


def test_secrets_are_masked_everywhere(failed: Job) -> None:
    for result in (skipqueue("show", failed.pk), skipqueue("show", "--json", failed.pk)):
        assert result.code == 0
        assert "pass-word" not in result.out
        assert "k-123456" not in result.out


def test_json_has_everything(failed: Job) -> None:
    [shown] = skipqueue("show", "--json", failed.pk).objects
    assert (shown["id"], shown["status"], shown["args"]) == (failed.pk, "queued", [42])
    assert shown["errors"][0]["message"] == "'x' of ••••••"
    assert shown["operations"][0]["by"] == "ann@web-1"


def test_several_are_shown_in_the_order_of_their_ids() -> None:
    first, second = make_job(), make_job("completed", result={"sent": 1})
    assert [each["id"] for each in skipqueue("show", "--json", second.pk, first.pk).objects] == [first.pk, second.pk]
    out = skipqueue("show", second.pk, f"#{first.pk}").out
    assert out.index(f"Job {first.pk}") < out.index(f"Job {second.pk}")
    assert f"result        {json.dumps({'sent': 1})}" in out


def test_an_unknown_id_is_named() -> None:
    result = skipqueue("show", make_job().pk, 999_999_999)
    assert (result.code, result.out) == (1, "")
    assert "There is no job 999999999." in result.err


def test_a_row_that_another_program_wrote_is_shown_as_far_as_it_goes() -> None:
    made = make_job(
        "failed", args={"no": "list"}, kwargs=["no dict"], errors=[1, {"at": 3}, {"at": "x"}, {}], task="a\x1b\n"
    )
    for options in ([], ["--json"]):
        result = skipqueue("show", made.pk, *options)
        assert result.code == 0
        assert result.out.replace("\n", "").isprintable()
