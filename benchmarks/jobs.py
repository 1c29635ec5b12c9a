"""The tasks that are measured."""

import asyncio
import os
import time
from dataclasses import replace

from django.contrib.auth.models import User

from django_skipqueue import by, job, limit, rate, unique_by
from django_skipqueue.values.part import install_parts, installed_parts

WITHOUT_ROLLUPS = "BENCHMARKS_WITHOUT_ROLLUPS"
"""In the environment of `runworker`: its workers count nothing, and its supervisor neither counts nor samples."""

if WITHOUT_ROLLUPS in os.environ:
    history = [part for part in installed_parts() if part.name == "history"]
    install_parts(replace(part, services=(), observers=()) for part in history)


@job
def noop(number: int) -> None:
    """Does nothing: what is measured is the queue."""


@job
async def anoop(number: int) -> None:
    """Does nothing, in the event loop."""


@job
def ten_ms(_number: int) -> None:
    """Waits as a call to another service does."""
    time.sleep(0.01)


@job
async def aten_ms(_number: int) -> None:
    """Waits for ten milliseconds in the event loop."""
    await asyncio.sleep(0.01)


@job
def five_ms(number: int) -> float:
    """Reads a row by the ORM and waits for the rest of 5 ms; the milliseconds that it took."""
    started = time.perf_counter()
    User.objects.filter(pk=number).first()
    time.sleep(max(0.0, 0.005 - (time.perf_counter() - started)))
    return (time.perf_counter() - started) * 1000


@job
def clock() -> float:
    """When it started, in seconds since the epoch."""
    return time.time()


@job(concurrency=limit(2, by="key"))
def limited(key: int) -> float:  # noqa: ARG001 (names the key)
    """When it started; at most two of a key run at once."""
    return time.time()


@job(sequence=by("key"))
def in_sequence(key: int) -> tuple[float, float]:  # noqa: ARG001 (names the key)
    """When it started and when it ended; one after the other for each key."""
    return time.time(), time.time()


@job(concurrency=limit(2, by="key"))
def limited_noop(key: int) -> None:
    """Does nothing, as `noop`; at most two of a key run at once."""


@job(concurrency=limit(5, by="key"))
def limited_ten_ms(key: int) -> None:  # noqa: ARG001 (names the key)
    """Waits for 10 ms, as `ten_ms`; at most five of a key run at once."""
    time.sleep(0.01)


@job(sequence=by("key"))
def noop_in_sequence(key: int) -> None:
    """Does nothing, as `noop`; one after the other for each key."""


@job(fair_by="tenant")
def fair_work(tenant: str, milliseconds: int = 0) -> None:  # noqa: ARG001 (names the key)
    """Waits, or does nothing; its tenants share the workers."""
    if milliseconds:
        time.sleep(milliseconds / 1000)


@job(rate=rate("1000/s", by="key"))
def rated(key: int) -> None:
    """Does nothing; as many of a key may start as no worker can run."""


@job(unique=unique_by("number"))
def unique_noop(number: int) -> None:
    """Does nothing, as `noop`; one unfinished job of each number."""


@job(rate=rate("100/m", by="key"))
def rated_slowly(key: int) -> None:
    """Does nothing; one of a key starts at once, and the others wait."""


@job(rate=rate("50/s"))
def fifty() -> float:
    """When it started, in seconds since the epoch."""
    return time.time()
