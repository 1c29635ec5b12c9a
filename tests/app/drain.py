"""Starts processes that claim and settle all jobs of a queue as workers do, and prints which jobs each has claimed.

    python -m tests.app.drain DATABASE_NAME QUEUE LIMIT…

There is a process for each limit. The processes begin together, when all are connected.
"""

import json
import multiprocessing
import os
import sys
from contextvars import ContextVar
from multiprocessing.synchronize import Barrier

import django

context = multiprocessing.get_context("fork")
start_barrier: ContextVar[Barrier] = ContextVar("start_barrier")
"""The barrier at which the processes wait for each other."""


def main(database: str, queue_name: str, limits: list[int]) -> None:
    django.setup()
    from django.db import connection

    from . import rows  # noqa: F401 (an import before the fork serves all processes)

    connection.settings_dict["NAME"] = database
    barrier = context.Barrier(len(limits), timeout=60)
    with context.Pool(len(limits), start_barrier.set, [barrier]) as pool:
        json.dump(pool.starmap(drain, [(queue_name, limit) for limit in limits], chunksize=1), sys.stdout)


def drain(queue_name: str, limit: int) -> dict[str, list[int]]:
    from django.db import connection

    from django_skipqueue.values.outcomes import COMPLETED, Settlement

    from .rows import settle_and_claim

    connection.ensure_connection()
    start_barrier.get().wait()

    claimed_ids: list[int] = []
    lost_ids: list[int] = []
    settlements: list[Settlement] = []
    while True:
        settled_leases, jobs = settle_and_claim(
            settlements, queue_names=[queue_name], limit=limit, worker_id=f"process {os.getpid()}"
        )
        lost_ids += [job_id for job_id, lease, *_ in settlements if (job_id, lease) not in settled_leases]
        if not jobs and not settlements:
            return {"claimed": claimed_ids, "lost": lost_ids}
        claimed_ids += [job.id for job in jobs]
        settlements = [Settlement(job.id, job.lease, COMPLETED) for job in jobs]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(limit) for limit in sys.argv[3:]])
