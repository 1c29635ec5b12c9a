# /// script
# requires-python = ">=3.10"
# dependencies = ["dbos==3.4.*", "psycopg[binary]==3.*"]
# ///
"""DBOS for Python. It is only in the table of `--steps`."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient

from .work import in_steps

TITLE = "DBOS"
HISTORY = "row, and a row for each step"

URL = f"postgresql:///{os.environ['PGDATABASE']}"
QUEUE = "default"
SECONDS_BETWEEN_POLLS = 0.003
"""The default of a second would have four workflows at once run only four workflows a second."""


@DBOS.step()
def noop(number: int) -> int:
    return number


@DBOS.workflow(name="workflow")
def workflow(number: int, steps: int) -> None:
    in_steps(noop, number, steps)


def run() -> None:
    """Run workflows until this process is ended."""
    DBOS(config={"name": "benchmarks", "system_database_url": URL, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=4, polling_interval_sec=SECONDS_BETWEEN_POLLS)
    threading.Event().wait()


def prepare() -> None:
    program = str(Path(sys.executable).with_name("dbos"))
    subprocess.run([program, "migrate", "--sys-db-url", URL], check=True, capture_output=True)


def enqueue_workflows(numbers: Sequence[int], steps: int) -> None:
    client = DBOSClient(system_database_url=URL)
    for number in numbers:
        client.enqueue({"workflow_name": "workflow", "queue_name": QUEUE}, number, steps)
    client.destroy()


def worker_of_four() -> list[str]:
    return [sys.executable, "-c", "from benchmarks.peers import dbos; dbos.run()"]


def unfinished() -> int:
    statement = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
    row = _connection().execute(statement).fetchone()
    return int(row[0]) if row else 0


@cache
def _connection() -> psycopg.Connection[Any]:
    return psycopg.connect(autocommit=True)
