# /// script
# dependencies = ["psycopg[binary]==3.*"]
# [tool.peer]
# npm = ["graphile-worker@0.18", "node@22"]
# programs = ["npm"]
# ///
"""Graphile Worker, which runs in Node. Jobs are enqueued by its SQL functions."""

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from . import marks

TITLE = "Graphile Worker (Node)"
HISTORY = "nothing"

MODULES = Path(os.environ["BENCHMARKS_NODE_MODULES"])
FOLDER = MODULES.parent / "work"

NOOP = "export default async () => {};\n"

MARK = f"""import {{ appendFileSync }} from "node:fs";
export default async ({{ number }}) => {{
  const now = (performance.timeOrigin + performance.now()) / 1000;
  appendFileSync(process.env.{marks.FILE}, `${{number}} ${{now}}\\n`);
}};
"""

BEST = """import { WorkerPreset } from "graphile-worker";
export default {
  extends: [WorkerPreset],
  worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
};
"""


def prepare() -> None:
    (FOLDER / "tasks").mkdir(parents=True, exist_ok=True)
    (FOLDER / "tasks" / "noop.mjs").write_text(NOOP)
    (FOLDER / "tasks" / "mark.mjs").write_text(MARK)
    (FOLDER / "best.mjs").write_text(BEST)
    os.chdir(FOLDER)  # the worker looks for tasks in the current folder
    subprocess.run([*_program(), "--schema-only"], check=True, stdout=subprocess.DEVNULL)


def enqueue(task: str, number: int) -> None:
    _connection().execute("SELECT graphile_worker.add_job(%s, %s)", [task, json.dumps({"number": number})])


def enqueue_many(numbers: Sequence[int]) -> None:
    jobs = json.dumps([{"identifier": "noop", "payload": {"number": number}} for number in numbers])
    _connection().execute(
        "SELECT count(*) FROM graphile_worker.add_jobs("
        " array(SELECT json_populate_recordset(NULL::graphile_worker.job_spec, %s)))",
        [jobs],
    )


def worker(*, best: bool) -> list[str]:
    return [*_program(), *(("--config", str(FOLDER / "best.mjs")) if best else ())]


def unfinished() -> int:
    row = _connection().execute("SELECT count(*) FROM graphile_worker.jobs").fetchone()
    return int(row[0]) if row else 0


def _program() -> list[str]:
    return [str(MODULES / ".bin" / "node"), str(MODULES / ".bin" / "graphile-worker")]


@cache
def _connection() -> psycopg.Connection[Any]:
    return psycopg.connect(autocommit=True)
