"""`python -m benchmarks [ROW …]`: measure rows of the table, and print them as Markdown and, if asked, as JSON."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import django

from .databases import about_server, fresh_database

Figures = dict[str, float]


def main() -> None:
    """Measure what the command line names."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from .rows import ROWS

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(ROWS)}; default: all")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs in each measurement (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures into this file as well")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"there is no row {', '.join(unknown)}")
    head = machine()
    print(f"{head}\n\n| row | {options.jobs:,} jobs, median of {options.repeat} |\n|---|---|", flush=True)
    table = {}
    for row in options.rows or ROWS:
        table[row] = median_of([measure(row, options.jobs) for _ in range(options.repeat)])
        print(f"| {row} | {', '.join(f'{show(value)} {name}' for name, value in table[row].items())} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": head, "jobs": options.jobs, "rows": table}, indent=2) + "\n")


def measure(row: str, jobs: int) -> Figures:
    """One measurement, in a process and a database of its own."""
    with fresh_database() as url:
        environment = {**os.environ, "DATABASE_URL": url}
        django_admin = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(django_admin, env=environment, check=True)
        command = [sys.executable, "-m", "benchmarks.measure", row, str(jobs)]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def median_of(measured: list[Figures]) -> Figures:
    """Name by name."""
    return {name: statistics.median(figures[name] for figures in measured) for name in measured[0]}


def machine() -> str:
    """What a reader needs to judge the figures."""
    python = platform.python_version()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {python}, Django {django.__version__}, {about_server()}"
    return f"{cpus} cores for PostgreSQL, client and worker; {versions}"


def show(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
