"""Several queue databases: the speed of drains over servers with a capped processor share, and the steward's memory."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import psutil
import psycopg

from ..capped_servers import CannotCap, capped_servers
from ..databases import fresh_database
from ..figures import Figures
from ..sizes import Sizes
from ..workers import runworker, wait_until

URLS = "BENCHMARKS_DATABASES"
"""The environment variable from which the settings module `benchmarks.several` reads the URLs of its databases."""

SHARE = 0.15
"""The share of a core for each server. Four servers leave most of two cores to the workers."""

SERVERS = (1, 2, 4)

DRAIN_TIMES = """
SELECT count(*), extract(epoch FROM min(started_at))::float8, extract(epoch FROM max(finished_at))::float8
FROM skipqueue_job WHERE status = 'completed'
"""


def several_databases(sizes: Sizes) -> Figures:
    """Drains over 1, 2 and 4 servers with a capped share of a core each, by one `runworker`."""
    try:
        rates = {number: _drain(number, sizes.jobs // 2) for number in SERVERS}
    except CannotCap as error:
        print(f"several-databases: this machine cannot cap servers: {error}", file=sys.stderr)
        return {}
    return {f"jobs/s, {number}": rate for number, rate in rates.items()} | {
        f"{number} ÷ 1": rates[number] / rates[1] for number in SERVERS[1:]
    }


def _drain(number: int, jobs_in_each: int) -> float:
    """Drain queues on this number of servers. Returns jobs per second, from the first claim to the last settlement."""
    with capped_servers(number, SHARE) as servers:
        urls = [server.create_database("queue") for server in servers]
        environment = _filled(urls, jobs_in_each)
        subprocess.run(
            [*runworker("--drain"), "--settings", "benchmarks.several"],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        drain_times = [_drain_times(url) for url in urls]
    completed = sum(count for count, _, _ in drain_times)
    if completed != number * jobs_in_each:
        raise RuntimeError(f"{completed} of {number * jobs_in_each} jobs were completed.")
    return completed / (max(end for *_, end in drain_times) - min(start for _, start, _ in drain_times))


def steward_memory(sizes: Sizes) -> Figures:
    """Private memory of the steward of three databases, after a drain and `--idle` seconds."""
    with ExitStack() as databases:
        urls = [databases.enter_context(fresh_database())["DATABASE_URL"] for _ in range(3)]
        environment = _filled(urls, sizes.jobs // 3)
        command = [*runworker("--verbosity", "0"), "--settings", "benchmarks.several"]
        steward = psutil.Popen(command, env=environment)
        try:
            wait_until(lambda: all(_drain_times(url)[0] == sizes.jobs // 3 for url in urls), seconds=3600)
            time.sleep(sizes.idle)
            memory = steward.memory_full_info()
        finally:
            steward.terminate()
            steward.wait()
    return {"MB private": memory.uss / 1e6, "MB with its part of shared pages": memory.pss / 1e6}


FILL = """
from django.db import connections
from benchmarks import jobs
jobs.noop.defer_many([(number,) for number in range({count})])
for connection in connections.all():
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE skipqueue_job")
        cursor.execute("CHECKPOINT")
"""


def _filled(urls: Sequence[str], jobs_in_each: int) -> dict[str, str]:
    """Create the tables and this many jobs in each database. Returns the environment of processes that use them."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.several", URLS: "\n".join(urls)}
    for alias in ["default", *(f"queue_{place}" for place in range(1, len(urls)))]:
        _manage(environment, "migrate", "--verbosity", "0", "--database", alias)
    _manage(environment, "shell", "--command", FILL.format(count=len(urls) * jobs_in_each))
    return environment


def _manage(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "django", *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)


def _drain_times(url: str) -> tuple[int, float, float]:
    with psycopg.connect(url) as connection:
        row = connection.execute(DRAIN_TIMES).fetchone()
    assert row is not None
    return row[0], row[1], row[2]
