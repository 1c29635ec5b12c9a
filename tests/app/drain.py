"""A process that claims and settles the jobs of a queue as a worker does, and prints which jobs it claimed.

    python -m tests.app.drain DATABASE_NAME QUEUE LIMIT

The process prints "ready" when it is connected, and starts when a line arrives on its standard input, so that several
processes start together.
"""

import json
import os
import sys


def main(database: str, queue_name: str, limit: int) -> None:
    import django

    django.setup()
    from django.db import connection

    from django_skipqueue.values.outcomes import COMPLETED, Settlement

    from .rows import settle_and_claim

    connection.settings_dict["NAME"] = database
    connection.ensure_connection()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()

    claimed: list[int] = []
    lost: list[int] = []
    finished: list[Settlement] = []
    while True:
        settled, jobs = settle_and_claim(
            finished, queue_names=[queue_name], limit=limit, worker_id=f"process {os.getpid()}"
        )
        lost += [job_id for job_id, lease, *_ in finished if (job_id, lease) not in settled]
        if not jobs and not finished:
            break
        claimed += [job.id for job in jobs]
        finished = [Settlement(job.id, job.lease, COMPLETED) for job in jobs]
    json.dump({"claimed": claimed, "lost": lost}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
