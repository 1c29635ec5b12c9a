"""`python -m benchmarks.peers [PEER …]`: measure other job queues (peers) and ours, and print one table.

For a peer that cannot be installed or measured, the table has the reason.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..figures import Figures, markdown_head, markdown_row, median_of, show
from ..machine import machine
from . import PEERS, PEERS_WITH_LIMITS, PEERS_WITH_STEPS, limits, pairs, steps
from .environments import Environment, NotInstalled
from .trials import FEWEST, NotMeasured, enough, measurement, title_of

COLUMNS = (
    "",
    "keeps of a finished job",
    "drain, default: jobs/s",
    "drain, best: jobs/s",
    "enqueue one: /s",
    "enqueue bulk: /s",
    "start after p50 / p99: ms",
    "ours ÷ theirs: default, best, one, bulk",
)
Measured = dict[str, Any]
Table = tuple[
    Sequence[str],
    Sequence[str],
    Callable[[str, int, float, int], Measured],
    Callable[[Measured, Figures | None], str],
]
"""The peers that are measured by default, the columns, and how a peer is measured and shown."""

COMPARED = ("drain default", "drain best", "enqueue one", "enqueue bulk")


def main() -> None:
    """Measure the peers that the command line names."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that started processes end as well
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"one of {', '.join(PEERS)}, or dbos; default: all")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs in each drain (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of a drain; a slow peer gets fewer jobs (default: %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each (default: %(default)s)")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--limits", action="store_true", help="measure drains of jobs with a limit instead")
    tables.add_argument("--pairs", action="store_true", help="measure carried queues in turn with plain Celery instead")
    tables.add_argument("--steps", action="store_true", help="measure workflows with recorded steps instead")
    parser.add_argument("--json", type=Path, help="write the figures into this file as well")
    options = parser.parse_args()
    peers, columns, measure, line = chosen(options)
    unknown = [peer for peer in options.peers if peer not in peers]
    if unknown:
        parser.error(f"this table has no peer {', '.join(unknown)}")
    head = machine()
    print(f"{head}\n\n{markdown_head(columns)}", flush=True)
    table: dict[str, Any] = {}
    ours = None
    for peer in options.peers or peers:
        try:
            table[peer] = measure(peer, options.jobs, options.seconds, options.repeat)
        except (NotInstalled, NotMeasured) as reason:
            table[peer] = {"title": peer, "reason": str(reason)}
        if peer == "skipqueue":
            ours = table[peer].get("figures")
        print(line(table[peer], ours), flush=True)
    if options.json:
        written = {"machine": head, "jobs": options.jobs, "repeat": options.repeat, "peers": table}
        options.json.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n")


def chosen(options: argparse.Namespace) -> Table:
    """The table that the command line asks for: its peers, its columns, and functions that measure and show a peer."""
    if options.limits:
        return PEERS_WITH_LIMITS, limits.COLUMNS, limits.measured, limits.row
    if options.pairs:
        return ("carried",), pairs.COLUMNS, pairs.measured, pairs.row
    if options.steps:
        return PEERS_WITH_STEPS, steps.COLUMNS, steps.measured, steps.row
    return PEERS, COLUMNS, measured, row


def measured(peer: str, jobs: int, seconds: float, repeat: int) -> dict[str, Any]:
    """Measure one peer `repeat` times. Returns the medians of its figures."""
    environment = Environment.of(peer)
    environment.install()
    figures: Figures = {}
    for kind in ("default", "best"):
        trial = measurement(environment, f"drain_{kind}", min(FEWEST, jobs))
        number_of_jobs = enough(trial["figures"]["jobs/s"], jobs, seconds)
        answers = [measurement(environment, f"drain_{kind}", number_of_jobs) for _ in range(repeat)]
        figures[f"drain {kind}"] = median_of([answer["figures"] for answer in answers])["jobs/s"]
    enqueued = median_of([measurement(environment, "enqueue", jobs)["figures"] for _ in range(repeat)])
    figures |= {"enqueue one": enqueued["one/s"], "enqueue bulk": enqueued["bulk/s"]}
    figures |= median_of([measurement(environment, "latency", jobs)["figures"] for _ in range(repeat)])
    return {"title": title_of(environment, answers[0]), "history": answers[0]["history"], "figures": figures}


def row(peer: dict[str, Any], ours: Figures | None) -> str:
    """The line of a peer in the table, with ratios of our figures to the figures of the peer."""
    if "reason" in peer:
        return markdown_row([peer["title"], f"not measured: {peer['reason']}", *[""] * (len(COLUMNS) - 2)])
    figures: Figures = peer["figures"]
    ratios = "" if ours in (None, figures) else ", ".join(show(ours[name] / figures[name]) for name in COMPARED)
    return markdown_row(
        [
            peer["title"],
            peer["history"],
            *(show(figures[name]) for name in COMPARED),
            f"{show(figures['ms p50'])} / {show(figures['ms p99'])}",
            ratios,
        ]
    )


if __name__ == "__main__":
    main()
