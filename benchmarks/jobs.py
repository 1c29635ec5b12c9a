"""The tasks that are measured."""

import asyncio
import time

from django_skipqueue import job


@job
def noop(number: int) -> None:
    """Does nothing: what is measured is the queue."""


@job
async def anoop(number: int) -> None:
    """The same in the event loop."""


@job
def ten_ms(_number: int) -> None:
    """Waits as a call to another service does."""
    time.sleep(0.01)


@job
async def aten_ms(_number: int) -> None:
    """The same in the event loop."""
    await asyncio.sleep(0.01)


@job
def clock() -> float:
    """When it started, in seconds since the epoch."""
    return time.time()
