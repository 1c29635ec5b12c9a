"""The floor: what PostgreSQL needs for the same statements, without Django, without a worker, without a task."""

import json
import time
from typing import Any

import psycopg

from django_skipqueue import sql

from .. import jobs, workers
from ..databases import connect
from ..figures import Figures
from ..sizes import Sizes


def floor(sizes: Sizes) -> Figures:
    """The same claim and settle statements in a bare loop, in batches of the same size; the drain ÷ this floor."""
    ours = workers.drain(jobs.noop, sizes.jobs)
    batch = round(ours["jobs in a batch"])
    workers.fill(jobs.noop, sizes.jobs)
    with connect() as connection:
        started = time.perf_counter()
        settled = _empty(connection, batch)
        seconds = time.perf_counter() - started
    if settled != sizes.jobs:
        raise RuntimeError(f"{settled} of {sizes.jobs} jobs were settled.")
    rate = sizes.jobs / seconds
    return {"jobs/s": rate, "jobs in a batch": batch, "drain ÷ floor": ours["jobs/s"] / rate}


def _empty(connection: psycopg.Connection[Any], batch: int) -> int:
    """Settle a batch and claim the next, in one round trip and one commit, until there is none; how many settled."""
    claim = {"queue_names": ["default"], "limit": batch, "worker_id": "floor"}
    settled = 0
    held: list[tuple[int, int]] = []
    while True:
        outcomes = json.dumps([{"id": id, "lease": lease, "status": "completed"} for id, lease in sorted(held)])
        settling, claiming = connection.cursor(), connection.cursor()
        with connection.pipeline():
            settling.execute(sql.SETTLE, {"outcomes": outcomes})
            claiming.execute(sql.CLAIM_TO_RUN, claim)
        settled += len(settling.fetchall())
        names = [column.name for column in claiming.description or ()]
        id, lease = names.index("id"), names.index("lease")
        held = [(row[id], row[lease]) for row in claiming.fetchall()]
        if not held:
            return settled
