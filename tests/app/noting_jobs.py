"""Tasks that write progress and log lines into their job."""

import logging
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from django_skipqueue import JobContext, Retry, job

from .models import Ledger
from .worker_jobs import gates

logger = logging.getLogger("shop.noting")


@job(takes_context=True)
def advance(context: JobContext, gate: str, *values: float, text: str = "") -> None:
    """Write each value as the progress, and then wait until the test opens the gate."""
    for value in values:
        context.progress(value, text)
    gates[gate].wait()


@job(takes_context=True)
def advance_with_secret(context: JobContext, gate: str, token: str) -> None:
    context.progress(0.5, f"with {token}")
    gates[gate].wait()


def _deep_inside() -> None:
    context = JobContext.current()
    assert context is not None
    context.progress(0.5, f"job {context.job_id}")


@job(max_attempts=1)
def advance_deep_inside() -> None:
    _deep_inside()


@job(max_attempts=1)
async def aadvance_deep_inside() -> None:
    await sync_to_async(_deep_inside)()


@job(takes_context=True)
async def aadvance(context: JobContext, gate: str, *values: float, text: str = "") -> None:
    for value in values:
        context.progress(value, text)
    await gates[gate].await_()


@job(takes_context=True)
def advance_in_a_transaction(context: JobContext, gate: str) -> None:
    """Write progress in a transaction that stays open until the gate opens."""
    with transaction.atomic():
        Ledger.objects.create(entry=gate)
        context.progress(0.5, "in a transaction")
        gates[gate].wait()


@job(takes_context=True, atomic=True)
def advance_atomically(context: JobContext, gate: str) -> None:
    context.progress(0.5, "atomic")
    logger.info("before the commit")
    gates[gate].wait()
    context.progress(1)


@job(takes_context=True)
def complete_and_go_on(context: JobContext, gate: str) -> None:
    """Complete the job, and keep its row locked until the gate opens; then write another log line."""
    with transaction.atomic():
        context.log("before the commit")
        context.complete("done")
        context.progress(0.5)
        gates[gate].wait()
    context.log("after the commit")


@job(takes_context=True, max_attempts=5, backoff=lambda attempt: 0.0)
def fail_at(context: JobContext, *values: float) -> None:
    """In the nth attempt, write the nth value as the progress, and ask for a retry; after the last value, succeed."""
    if context.attempt <= len(values):
        context.progress(values[context.attempt - 1])
        context.log(f"attempt {context.attempt}")
        raise Retry(after=0)


@job(takes_context=True)
def wrong_progress(context: JobContext) -> None:
    context.progress(40)


@job(max_attempts=1)
def log_all(number: int, *, password: str = "", fails: bool = False) -> None:
    """Log a line of each level."""
    logger.debug("debug %d", number)
    logger.info("info %d", number)
    logger.warning("the password is %s", password)
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("caught")
    if fails:
        raise KeyError("outer")


@job
async def alog(gate: str, number: int) -> None:
    """Log a line before the gate, and a line in a thread after it."""
    logger.info("first %d", number)
    await gates[gate].await_()
    await sync_to_async(logger.info)("second %d", number)


@job
def log_many(count: int, size: int = 1) -> None:
    for number in range(count):
        logger.info("%d %s", number, "x" * size)


class Broken:
    """A value that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


@job
def log_what_is_broken() -> None:
    logging.raiseExceptions = False
    try:
        logger.info("%s", Broken())
        logger.info("%d", "no number")
        logger.info("nul \0, half \ud800")
    finally:
        logging.raiseExceptions = True


@job
def log_in_a_thread() -> None:
    """Log in a new thread, which does not belong to an attempt, and in the thread of the task."""
    thread = threading.Thread(target=logger.info, args=["of nobody"])
    thread.start()
    thread.join()
    logger.info("of the attempt")


@job(takes_context=True)
def chat(context: JobContext, gate: str) -> None:
    """Log until the gate opens."""
    number = 0
    while not gates[gate].opened.is_set():
        number += 1
        context.log(f"line {number}")
        time.sleep(0.05)


@job(takes_context=True, max_attempts=1, timeout=1.5)
def hang(context: JobContext) -> None:
    context.progress(0.25, "hanging")
    context.log("before it hangs")
    while True:
        time.sleep(0.01)


def lines(logs: Any) -> list[list[tuple[str, str]]]:
    """For each attempt: the level and the first line of the text of each log line."""
    return [[(level, text.splitlines()[0]) for _, level, _, text in log["lines"]] for log in logs or []]
