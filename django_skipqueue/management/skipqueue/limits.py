"""`skipqueue limits`: the keys for which jobs wait, the halted sequences first; or one key with its jobs."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now

from ...events.log_format import in_words, printable
from ...models import Status
from ...operators.limit_states import LimitState, halted_by_key, halted_states, holders_of, limit_states
from ...operators.list_order import Indexed
from ...store import Store
from ..terminal.console import Console
from ..terminal.option_types import positive
from ..terminal.subcommand import Exit, Subcommand
from ..terminal.tables import RED, Coloured
from .list import print_jobs
from .snapshot import counted

HEADINGS = ("key", "kind", "held", "of", "waiting", "oldest", "note")

NUMBERS = ("held", "of", "waiting", "oldest")

MOST_JOBS = 20
"""Jobs of one key that are listed, of those that hold a permit, and of those that wait."""


class Limits(Subcommand):
    """It only reads."""

    name = "limits"
    help = "List the keys of limits and sequences for which jobs wait, or show one with its jobs"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("key", nargs="?", metavar="KEY", help="show this key, and its jobs")
        parser.add_argument("--limit", type=positive, default=100, metavar="N", help="keys to list (default: 100)")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each key")

    def run(self, console: Console, **options: Any) -> Exit:
        """List the halted sequences, then the other keys alphabetically."""
        key, most = options["key"], options["limit"]
        if key is not None:
            return _show(console, key, in_json=options["json"])
        found = _states(most)
        if options["json"]:
            for state in found:
                console.json(_as_json(state))
        elif found:
            console.table(HEADINGS, map(_row, found), right=NUMBERS)
        if len(found) == most:
            console.say(f"These are the first {most:,} keys. --limit lists more.")
        if not found:
            console.say("No job waits for a permit.")
        return Exit.DONE if found else Exit.NEGATIVE


def _states(most: int) -> list[LimitState]:
    store = Store.default()
    halted = halted_states(store, most=most)
    first = {state.now.key for state in halted}
    others = [key for key in store.waiting_keys(limit=most) if key not in first]
    return [*halted, *limit_states(store, others, {})][:most]


def _row(state: LimitState) -> list[str]:
    note = ""
    if state.halted is not None:
        note = Coloured(f"halted: job {state.halted.job_id} failed {in_words(state.halted.seconds)} ago", RED)
    numbers = (
        counted(state.held),
        "" if state.now.capacity is None else f"{state.now.capacity:,}",
        counted(state.waiting),
    )
    return [state.key, state.kind, *numbers, in_words(state.oldest), note]


def _as_json(state: LimitState) -> dict[str, Any]:
    return {
        "key": state.masked,
        "kind": state.now.kind,
        "capacity": state.now.capacity,
        "held": {"count": state.held.shown, "or_more": state.held.is_capped},
        "waiting": {"count": state.waiting.shown, "or_more": state.waiting.is_capped},
        "oldest_seconds": state.oldest,
        "next_job": state.now.next_id,
        "halted_by_job": state.halted.job_id if state.halted else None,
        "halted_seconds": state.halted.seconds if state.halted else None,
    }


def _show(console: Console, key: str, *, in_json: bool) -> Exit:
    """Show one key with the first jobs that hold a permit, and the first that wait for one."""
    store = Store.default()
    states = limit_states(store, [key], halted_by_key(store))
    held = list(holders_of(key).annotate(now=Now()).order_by("pk")[:MOST_JOBS])
    waiting = list(Indexed(Status.BLOCKED, limit_key=key).jobs().annotate(now=Now())[:MOST_JOBS])
    if not held and not waiting:
        raise CommandError(printable(f"No job holds a permit of the key {key!r}, or waits for one."))
    if in_json:
        ids = {"held_by": [job.pk for job in held], "next_jobs": [job.pk for job in waiting]}
        console.json({name: value for state in states for name, value in _as_json(state).items()} | ids)
        return Exit.DONE
    if states:
        console.table(HEADINGS, map(_row, states), right=NUMBERS)
        console.line()
    print_jobs(console, [*held, *waiting], in_json=False)
    return Exit.DONE
