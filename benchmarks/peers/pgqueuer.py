# /// script
# dependencies = ["pgqueuer[asyncpg]==1.6.*"]
# ///
"""pgqueuer with asyncpg: an `async def` task, which is the only kind that its quick start has."""

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
    """What its worker runs."""
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
    # `pgq run` as a call: the command itself does not start with the version of typer that is installed for it.
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
