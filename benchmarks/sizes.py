"""`Sizes`: the numbers of jobs, rows and seconds. Each is an option of the command line, with its default and help."""

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Self


def _size(default: int, help: str) -> int:
    number: int = dataclasses.field(default=default, metadata={"help": help})
    return number


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many jobs, rows and seconds a measurement takes."""

    jobs: int = _size(50_000, "jobs in each drain, and in the one call of .defer_many()")
    rounds: int = _size(3, "drains without and drains with the other rows, where the two are compared")
    finished: int = _size(10_000_000, "finished jobs that lie in the table of the row `history`")
    future: int = _size(1_000_000, "jobs of tomorrow that lie in the table of the row `future`")
    pruned: int = _size(1_000_000, "finished jobs that the rows `delete` and `archive` prune")
    others: int = _size(1_000_000, "jobs of another queue that lie in the table of the row `other-queue`")
    blocked: int = _size(1_000_000, "blocked jobs that lie in the table of the row `limits`")
    dead: int = _size(20_000, "completed jobs of each key under the snapshot of the row `limits-latency`")
    snapshot: int = _size(500_000, "jobs drained under an open snapshot")
    scheduled: int = _size(10_000, "jobs that become due in the row `lateness`")
    lone: int = _size(100, "jobs that are scheduled one at a time in the row `lone-scheduled`")
    span: int = _size(60, "seconds over which they become due")
    idle: int = _size(30, "seconds for which the idle worker is watched")
    memory: int = _size(1_000_000, "jobs after which the worker's memory is looked at again")

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options `--jobs N` and so on to the parser."""
        for field in dataclasses.fields(cls):
            parser.add_argument(
                f"--{field.name}",
                type=int,
                default=field.default,
                metavar="N",
                help=f"{field.metadata['help']} (default: {field.default:,})",
            )

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Self:
        """The sizes that the command line gives."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})
