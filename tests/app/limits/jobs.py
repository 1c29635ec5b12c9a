"""Tasks with limits and sequences."""

import asyncio
import fcntl
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from django.db import connection

from django_skipqueue import JobContext, by, job, limit
from django_skipqueue.values.backoff import constant

from ..ledger import note
from ..models import Ledger
from ..worker_jobs import gates


@job(concurrency=limit(2, by="account"), takes_context=True)
def two_at_once(context: JobContext, account: str, number: int = 0, seconds: float = 0.0) -> None:
    """Write the start and the end into the ledger."""
    note("start", account, number, context.job_id)
    time.sleep(seconds)
    note("end", account, number, context.job_id)


@job(concurrency=limit(2, by="account"))
def lock_one_of_two_files(account: str, number: int, seconds: float = 0.0) -> None:
    """Lock one of two files while the task runs. The kernel unlocks the file when the process dies."""
    for slot in range(2):
        name = f"skipqueue-{connection.settings_dict['NAME']}-{account}-{slot}"
        with (Path(tempfile.gettempdir()) / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            time.sleep(seconds)
            return
    Ledger.objects.create(entry="exceeded")


@job(concurrency=limit(2, by="account"))
def two_per_account(account: str) -> None:
    """Do nothing."""


@job(sequence=by("order"), takes_context=True, max_attempts=3, backoff=constant(0.05))
def halting_sequence(
    context: JobContext, order: str, number: int = 0, fail_before: int = 0, seconds: float = 0.0
) -> None:
    """Write the start and the end into the ledger. Fail in every attempt before the number `fail_before`."""
    note("start", order, number, context.job_id)
    time.sleep(seconds)
    if context.attempt < fail_before:
        note("failure", order, number, context.job_id)
        raise ValueError("not yet")
    note("end", order, number, context.job_id)


@job(sequence=by("order", on_failure="continue"), max_attempts=1)
def continuing_sequence(order: str, number: int = 0, fails: bool = False) -> None:
    """Fail if the argument says so."""
    if fails:
        raise ValueError("as asked")


@job(concurrency=limit(1))
def one_at_a_time() -> None:
    """Do nothing."""


@job(concurrency=limit(1, by="number"))
def one_per_number(number: int) -> None:
    """Do nothing."""


@job(concurrency=limit(1, by="account", name="shared"))
def shared_limit(account: str) -> None:
    """Do nothing."""


@job(concurrency=limit(1, by="account", name="shared"))
def same_shared_limit(account: str) -> None:
    """Do nothing."""


@job(concurrency=limit(1, by="account"), unique_key=lambda number, account: f"moving {number}", on_conflict="replace")
def replaced_by_number(number: int, account: str) -> None:
    """Do nothing."""


@job(fair_by="tenant")
def shared_fairly(tenant: str, seconds: float = 0.0) -> None:
    """Sleep for some seconds."""
    time.sleep(seconds)


@job(concurrency=limit(1, by="key"), max_attempts=1)
def pass_gate_alone(key: str, name: str) -> None:
    """Run until the gate opens, and ignore every interruption."""
    with gates[name]:
        gates[name].wait()


@job(concurrency=limit(1, by="key"), max_attempts=1)
async def apass_gate_alone(key: str, name: str) -> None:
    with gates[name]:
        while not gates[name].opened.is_set():
            with suppress(asyncio.CancelledError):
                await gates[name].await_()


@job(sequence=by("key"), max_attempts=2, backoff=constant(0))
def pass_gate_in_order(key: str, name: str) -> None:
    with gates[name]:
        gates[name].wait()
