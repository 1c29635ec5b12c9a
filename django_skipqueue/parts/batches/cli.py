"""`skipqueue batches`: the newest batches, or one with its callbacks and inner batches."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.tables import GREEN, RED, YELLOW, Coloured
from ...console.cli.terminal import Console
from ...console.durations import distance
from ...models import JobBatch
from . import states as batches

HEADINGS = ("id", "name", "state", "done", "failed", "created", "finished", "outer")

COLOURS = {"running": YELLOW, "finished": GREEN, "failures": RED}

DEFAULT_LIMIT, MOST = 20, 1_000


class Batches(Subcommand):
    name = "batches"
    help = "List the batches with their progress; show one with its callbacks"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="?", type=int, metavar="ID", help="show this batch; default: list the newest")
        parser.add_argument("--state", choices=list(batches.CONDITIONS), help="list only those that are in this state")
        parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="how many to list")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each batch")

    def run(self, console: Console, **options: Any) -> Exit:
        if options["id"] is not None:
            return _show(console, options["id"], as_json=options["json"])
        if not 1 <= options["limit"] <= MOST:
            raise CommandError(f"--limit must be from 1 to {MOST}.", returncode=Exit.USAGE)
        rows = (
            JobBatch.objects.filter(batches.CONDITIONS[options["state"]])
            if options["state"]
            else JobBatch.objects.all()
        )
        found = batches.batch_states(batches.with_time(rows).order_by("-pk")[: options["limit"]])
        if options["json"]:
            for each in found:
                console.json(each.as_json)
        elif found:
            console.table(HEADINGS, map(_row, found), right=("id", "done", "failed", "outer"))
        else:
            console.say("There is no such batch." if options["state"] else "There is no batch.")
        return Exit.DONE if found else Exit.NEGATIVE


def _show(console: Console, batch_id: int, *, as_json: bool) -> Exit:
    found = batches.batch_state(batch_id) if 0 <= batch_id < 2**63 else None
    if found is None:
        raise CommandError(f"There is no batch {batch_id}. It may have been pruned.")
    callbacks = batches.callbacks_of(found.row)
    if as_json:
        console.json(found.as_json | {"callbacks": [each._asdict() for each in callbacks]})
        return Exit.DONE
    console.table(HEADINGS, [_row(found)], right=("id", "done", "failed", "outer"))
    if callbacks:
        console.line("")
        rows = [[each.name, each.task, str(each.job_id or ""), each.state] for each in callbacks]
        console.table(("callback", "task", "job", "state"), rows, right=("job",))
    return Exit.DONE


def _row(each: batches.BatchState) -> list[str]:
    row = each.row
    return [
        str(row.pk),
        row.name,
        Coloured(str(batches.STATES[each.state]), COLOURS[each.state]),
        each.numbers,
        str(each.failures),
        distance(row.created_at, each.now),
        distance(row.finished_at, each.now) if row.finished_at else "",
        str(row.parent_id or ""),
    ]
