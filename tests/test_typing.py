"""A type checker finds an error in each wrong call of a task, and no error in right calls."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CONFIG = """
[mypy]
strict = True
plugins = mypy_django_plugin.main

[mypy.plugins.django-stubs]
django_settings_module = {settings}
"""

# In a line that ends with `# error: …`, mypy must report an error with this text; in every other line, no error.
SNIPPET = """
from collections.abc import Mapping
from datetime import timedelta
from typing import assert_type

from django_skipqueue import Discard, JobContext, Retry, Snooze, Task, job
from django_skipqueue.values.backoff import constant, exponential, linear
from django_skipqueue.models import Job
from django_skipqueue.values.records import DeferredJobs
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.queue.store import Store


@job
def bare(payment_id: int, note: str = "") -> bool:
    return payment_id > 0


@job(name="x", queue_name="q", priority=5, max_attempts=3, backoff=linear(), retry_on=(OSError,), timeout=5)
def optioned(payment_id: int) -> None:
    raise Retry("later", after=timedelta(seconds=1))


@job(unique_key=lambda payment_id: f"mail-{payment_id}", backoff=lambda attempt: attempt * 2.0)
def keyed(payment_id: int) -> None:
    raise Snooze(after=5)


@job
async def coroutine(payment_id: int) -> str:
    raise Discard("no")


@job(takes_context=True)
def contextual(context: JobContext, payment_id: int) -> str:
    return context.job.task


@job(takes_context=True, backoff=exponential(3))
async def acontextual(context: JobContext, payment_id: int) -> int:
    return (await context.aget_job()).attempts


def calls(context: JobContext) -> None:
    assert_type(bare(1), bool)
    assert_type(bare.defer(1), Job)
    assert_type(bare.defer(payment_id=1, note="x"), Job)
    assert_type(bare.defer_many([{"payment_id": 1}, (2, "x")]), DeferredJobs)
    assert_type(bare.defer_many([bare.s(1), bare.s(payment_id=2, note="x"), (3,)]), DeferredJobs)
    assert_type(contextual.defer_many([contextual.s(1)]), DeferredJobs)
    assert_type(bare.using(priority=3, run_after=timedelta(1)).defer(1), Job)
    assert_type(optioned.defer(payment_id=1), Job)
    assert_type(keyed.using(unique_key="k").defer(1), Job)
    assert_type(contextual(context, 1), str)
    assert_type(contextual.defer(1), Job)
    assert_type(contextual.defer(payment_id=1), Job)
    assert_type(contextual.using(queue_name="q").defer(payment_id=1), Job)
    assert_type(acontextual.defer(1), Job)
    known: Task[..., bool] = bare
    assert known.name

    bare.defer("x")  # error: incompatible type "str"; expected "int"
    bare.defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    bare.defer()  # error: Missing positional argument "payment_id"
    bare.defer(1, nope=2)  # error: Unexpected keyword argument "nope"
    bare.defer(1, "x", 2)  # error: Too many arguments
    bare.defer_many([bare.s("x")])  # error: incompatible type "str"; expected "int"
    bare.defer_many([bare.s(nope=1)])  # error: Unexpected keyword argument "nope"
    contextual.defer_many([contextual.s(payment_id="x")])  # error: incompatible type "str"; expected "int"
    bare("x")  # error: incompatible type "str"; expected "int"
    optioned.defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    keyed.defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    coroutine.defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    contextual.defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    contextual.using(priority=1).defer(payment_id="x")  # error: incompatible type "str"; expected "int"
    contextual.defer(context, 1)  # error: Too many arguments
    contextual(1)  # error: incompatible type "int"; expected "JobContext"
    bare.using(queue="q")  # error: Unexpected keyword argument "queue"
    bare.using(priority="high")  # error: incompatible type "str"; expected "int | None"
    bare.using(run_after=5)  # error: incompatible type "int"; expected "datetime | timedelta | None"
    Snooze()  # error: Missing named argument "after"
    Retry(after="soon")  # error: incompatible type "str"; expected "timedelta | float | None"


@job(priority="high")  # error: No overload variant of "job" matches
def wrong() -> None: ...


@job(takes_context=True)  # error: has incompatible type
def without_context(payment_id: int) -> None: ...


async def awaited(context: JobContext) -> None:
    assert_type(await coroutine(1), str)
    assert_type(await coroutine.adefer(1), Job)
    assert_type(await acontextual(context, 1), int)
    assert_type(await bare.adefer_many([(1,), bare.s(2)]), DeferredJobs)
    await coroutine.adefer(payment_id="x")  # error: incompatible type "str"; expected "int"
    await acontextual.adefer(payment_id="x")  # error: incompatible type "str"; expected "int"


def loop() -> None:
    for claimed in Job.objects.claim(queue_names=["default"], limit=5, worker_id="w"):
        assert_type(claimed, Job)
        claimed.heartbeat()
        claimed.complete({"any": "thing"})
        claimed.fail(ValueError())
        claimed.release()
    assert_type(Store("default").settle([Settlement(1, 1, COMPLETED)]), set[int])
    assert_type(Store("other").admit().by_queue, Mapping[str, int])
    assert_type(Store("default").retry([1, 2]), dict[int, str])
    assert_type(Job.objects.filter(task="x").retry(reason="mended"), int)
    assert_type(Job.objects.failed().first(), Job | None)
    assert_type(Job.objects.filter(task="x").failed().count(), int)
    Job.objects.claim(["default"])  # error: Too many positional arguments
    constant("x")  # error: incompatible type "str"; expected "float"
"""


@pytest.mark.slow  # it runs mypy
@pytest.mark.skipif(
    not (find_spec("mypy") and find_spec("mypy_django_plugin")), reason="mypy with django-stubs is not installed"
)
def test_mypy_reports_exactly_the_wrong_calls_of_tasks(tmp_path: Path) -> None:
    config, snippet = tmp_path / "mypy.ini", tmp_path / "snippet.py"
    config.write_text(CONFIG.format(settings=os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings")))
    snippet.write_text(SNIPPET)
    cache = ROOT / ".mypy_cache" / "tests"
    process = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", cache, "--no-pretty", snippet],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors: dict[int, list[str]] = {}
    for number, error in re.findall(r"^.*snippet\.py:(\d+): error: (.*)$", process.stdout, re.MULTILINE):
        errors.setdefault(int(number), []).append(error)
    lines = SNIPPET.splitlines()
    expected = {number: line.split("# error: ")[1] for number, line in enumerate(lines, 1) if "# error: " in line}
    assert process.returncode == 1, process.stdout + process.stderr
    assert {number: (lines[number - 1], texts) for number, texts in errors.items() if number not in expected} == {}
    assert {number: lines[number - 1] for number in expected if number not in errors} == {}
    for number, text in expected.items():
        assert any(text in error for error in errors[number]), (lines[number - 1], errors[number])
