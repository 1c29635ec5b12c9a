# /// script
# dependencies = ["pgqueuer[asyncpg]==1.6.*"]
# ///
"""pgqueuer with asyncpg. Its tasks are `async def` functions, as in its quick start."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from . import marks

TITLE = "pgqueuer (asyncpg)"
HISTORY = "log, one row for each change"

PROGRAM = str(Path(sys.executable).with_name("pgq"))


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """The application that the worker runs."""
    connection = await asyncpg.connect()
    pgq = PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    @pgq.entrypoint("mark")
    async def mark(job: Job) -> None:
        marks.leave(int(job.payload or b""))

    yield pgq
    await connection.close()


def prepare() -> None:
    subprocess.run([PROGRAM, "install"], check=True, stdout=subprocess.DEVNULL)


def enqueue(task: str, number: int) -> None:
    loop, queries, _ = _session()
    loop.run(queries.enqueue(task, str(number).encode()))


def enqueue_many(numbers: Sequence[int]) -> None:
    loop, queries, _ = _session()
    payloads: list[bytes | None] = [str(number).encode() for number in numbers]
    loop.run(queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads)))


def worker(*, best: bool) -> list[str]:
    # The function behind `pgq run`. The command itself fails with the version of typer that pip installs for it.
    batch_size = ", batch_size=500" if best else ""
    code = f"import asyncio, pgqueuer; asyncio.run(pgqueuer.run('benchmarks.peers.pgqueuer:main'{batch_size}))"
    return [sys.executable, "-c", code]


def unfinished() -> int:
    loop, _, connection = _session()
    return int(loop.run(connection.fetchval("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')")))


@cache
def _session() -> tuple[asyncio.Runner, Queries, asyncpg.Connection]:
    loop = asyncio.Runner()
    connection = loop.run(asyncpg.connect())
    return loop, Queries(AsyncpgDriver(connection)), connection
