"""The floor: the time that PostgreSQL needs for the same statements without Django, a worker and tasks."""

import time
from typing import Any

import psutil
import psycopg

from django_skipqueue.queue.claim import CLAIM
from django_skipqueue.queue.parameters import (
    ExchangeResult,
    claim_values,
    in_lock_order,
    pipelined,
    settlements_as_values,
)
from django_skipqueue.queue.settle import SETTLE
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import ClaimedJob

from .. import jobs, workers
from ..databases import connect
from ..figures import Figures
from ..sizes import Sizes
from .cost import cpu_seconds


def floor(sizes: Sizes) -> Figures:
    """The drain ÷ its floor: the same claim and settle statements in a bare loop, in batches of the same size."""
    ours = workers.drain(jobs.noop, sizes.jobs)
    batch = round(ours["jobs in a batch"])
    workers.fill(jobs.noop, sizes.jobs)
    with connect() as connection:
        session = psutil.Process(connection.info.backend_pid)
        used, here, started = cpu_seconds(session), time.process_time(), time.perf_counter()
        settled = _empty(connection, batch)
        seconds = time.perf_counter() - started
        used, here = cpu_seconds(session) - used, time.process_time() - here
    if settled != sizes.jobs:
        raise RuntimeError(f"{settled} of {sizes.jobs} jobs were settled.")
    rate = sizes.jobs / seconds
    return {
        "jobs/s": rate,
        "jobs in a batch": batch,
        "drain ÷ floor": ours["jobs/s"] / rate,
        "us of the session": used / sizes.jobs * 1e6,
        "us of the client": here / sizes.jobs * 1e6,
    }


def _empty(connection: psycopg.Connection[Any], batch: int) -> int:
    """Settle a batch and claim the next one, in one round trip and one commit, until no job is left.

    As in a worker, each claim starts where the last one ended. Returns the number of settled jobs.
    """
    settled = 0
    held: list[ClaimedJob] = []
    while True:
        after = {"default": held[-1].position} if held else {}
        outcomes = in_lock_order(Settlement(job.id, job.lease, COMPLETED) for job in held)
        settle = (SETTLE, settlements_as_values(outcomes)) if outcomes else None
        claim = (CLAIM, claim_values(["default"], after=after, limit=batch, worker_id="floor"))
        done, claimed = pipelined(connection, [settle, claim], meanwhile=lambda: None)
        answer = ExchangeResult(done, claimed, ["default"], time.monotonic())
        settled += len(answer.settled())
        held = answer.claimed()
        if not held:
            return settled
