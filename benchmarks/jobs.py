"""The tasks that the benchmarks run."""

import asyncio
import os
import time
from dataclasses import replace

from django.contrib.auth.models import User

from django_skipqueue import JobContext, by, job, limit, rate, unique_by
from django_skipqueue.values.part import install_parts, installed_parts

WITHOUT_ROLLUPS = "BENCHMARKS_WITHOUT_ROLLUPS"
"""Environment variable for `runworker`. If it is set, the workers and their supervisor do not record history."""

if WITHOUT_ROLLUPS in os.environ:
    history = [part for part in installed_parts() if part.name == "history"]
    install_parts(replace(part, services=(), observers=()) for part in history)


@job
def noop(number: int) -> None:
    """Does nothing, so that only the queue is measured."""


@job
async def anoop(number: int) -> None:
    """Does nothing, in the event loop."""


@job
def ten_ms(_number: int) -> None:
    """Waits for 10 ms in a thread, like a call to another service."""
    time.sleep(0.01)


@job
async def aten_ms(_number: int) -> None:
    """Waits for ten milliseconds in the event loop."""
    await asyncio.sleep(0.01)


@job
def five_ms(number: int) -> float:
    """Reads a row by the ORM and waits for the rest of 5 ms. Returns the milliseconds that it took."""
    started = time.perf_counter()
    User.objects.filter(pk=number).first()
    time.sleep(max(0.0, 0.005 - (time.perf_counter() - started)))
    return (time.perf_counter() - started) * 1000


@job
def clock() -> float:
    """Returns when the task started, in seconds since the epoch."""
    return time.time()


@job(concurrency=limit(2, by="key"))
def limited(key: int) -> float:  # noqa: ARG001 (names the key)
    """Returns when the task started. At most two jobs of a key run at once."""
    return time.time()


@job(sequence=by("key"))
def in_sequence(key: int) -> tuple[float, float]:  # noqa: ARG001 (names the key)
    """Returns when the task started and when it ended. The jobs of a key run one after the other."""
    return time.time(), time.time()


@job(concurrency=limit(2, by="key"))
def limited_noop(key: int) -> None:
    """Does nothing. At most two jobs of a key run at once."""


@job(concurrency=limit(5, by="key"))
def limited_ten_ms(key: int) -> None:  # noqa: ARG001 (names the key)
    """Waits for 10 ms. At most five jobs of a key run at once."""
    time.sleep(0.01)


@job(sequence=by("key"))
def noop_in_sequence(key: int) -> None:
    """Does nothing. The jobs of a key run one after the other."""


@job(fair_by="tenant")
def fair_work(tenant: str, milliseconds: int = 0) -> None:  # noqa: ARG001 (names the key)
    """Waits for some milliseconds. The tenants get equal shares of the workers."""
    if milliseconds:
        time.sleep(milliseconds / 1000)


@job(rate=rate("1000/s", by="key"))
def rated(key: int) -> None:
    """Does nothing. The rate is higher than any worker can reach, so it never delays a job."""


@job(unique=unique_by("number"))
def unique_noop(number: int) -> None:
    """Does nothing. There is at most one unfinished job of each number."""


@job(rate=rate("100/m", by="key"))
def rated_slowly(key: int) -> None:
    """Does nothing. One job of a key starts at once, and the others wait for the rate."""


@job(rate=rate("50/s"))
def fifty() -> float:
    """Returns when the task started, in seconds since the epoch. At most 50 jobs start in a second."""
    return time.time()


@job(takes_context=True)
def in_steps(context: JobContext, count: int) -> float:
    """Record `count` steps. Return the seconds that this took."""
    context.step("first", int)  # reads the recorded steps
    started = time.perf_counter()
    for number in range(count):
        context.step(f"step {number}", int, number)
    return time.perf_counter() - started


@job(takes_context=True)
def ten_steps(context: JobContext, number: int) -> None:
    """Record ten steps that do nothing."""
    for step in range(10):
        context.step(f"step {step}", int, number)


@job(takes_context=True)
def waits(context: JobContext) -> float:
    """Wait for a signal. Return when the task continued, in seconds since the epoch."""
    context.wait("go")
    return time.time()
