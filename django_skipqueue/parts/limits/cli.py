"""`skipqueue limits`: the keys for which jobs wait, the halted sequences first, the rates last; or one and its jobs."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now

from ...console.cli.list import print_jobs
from ...console.cli.option_types import positive
from ...console.cli.snapshot import counted
from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.tables import RED, Coloured
from ...console.cli.terminal import Console
from ...console.job_states import Indexed
from ...events.log_format import in_words, printable
from ...models import Status
from ...queue.store import Store
from ..rates.states import RateState, rate_states, rate_states_of, waiting_for_a_token
from .states import LimitState, halted_by_key, halted_states, holders_of, limit_states

HEADINGS = ("key", "kind", "held", "of", "waiting", "oldest", "note")

RATE_HEADINGS = ("key", "rate", "tokens", "waiting", "oldest", "next")

NUMBERS = ("held", "of", "waiting", "oldest", "tokens")

MOST_JOBS = 20
"""Jobs of one key that are listed, of those that hold a permit, and of those that wait."""


class Limits(Subcommand):
    name = "limits"
    help = "List the keys of limits, sequences and rates for which jobs wait, or show one with its jobs"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", nargs="?", metavar="KEY", help="show this key, and its jobs")
        parser.add_argument("--limit", type=positive, default=100, metavar="N", help="keys to list (default: 100)")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each key")

    def run(self, console: Console, **options: Any) -> Exit:
        key, most = options["key"], options["limit"]
        if key is not None:
            return _show(console, key, in_json=options["json"])
        found, rates = _states(most), rate_states(Store.default(), most=most)
        if options["json"]:
            for entry in (*map(_as_json, found), *(state.as_json() for state in rates)):
                console.json(entry)
        else:
            _print(console, found, rates)
        if most in (len(found), len(rates)):
            console.say(f"These are the first {most:,} keys. --limit lists more.")
        if not found and not rates:
            console.say("No job waits for a permit, or for its rate.")
        return Exit.DONE if found or rates else Exit.NEGATIVE


def _states(most: int) -> list[LimitState]:
    store = Store.default()
    halted = halted_states(store, most=most)
    first = {state.now.key for state in halted}
    others = [key for key in store.waiting_keys(limit=most) if key not in first]
    return [*halted, *limit_states(store, others, {})][:most]


def _print(console: Console, limits: list[LimitState], rates: list[RateState]) -> None:
    if limits:
        console.table(HEADINGS, map(_row, limits), right=NUMBERS)
    if limits and rates:
        console.line()
    if rates:
        console.table(RATE_HEADINGS, map(_rate_row, rates), right=NUMBERS)


def _rate_row(state: RateState) -> list[str]:
    tokens = "" if state.now.tokens is None else f"{state.now.tokens:,}"
    due = "" if state.now.due_in is None else "in " + in_words(max(state.now.due_in, 0.0))
    return [state.key, state.rate or "any", tokens, counted(state.waiting), in_words(state.oldest), due]


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
    store = Store.default()
    states, rates = limit_states(store, [key], halted_by_key(store)), rate_states_of(store, [key])
    held = list(holders_of(key).annotate(now=Now()).order_by("pk")[:MOST_JOBS])
    waiting = list(Indexed(Status.BLOCKED, limit_key=key).jobs().annotate(now=Now())[:MOST_JOBS])
    if rates:
        waiting += waiting_for_a_token(key).annotate(now=Now())[:MOST_JOBS]
    if not held and not waiting:
        raise CommandError(printable(f"No job holds a permit of the key {key!r}, or waits for one or for its rate."))
    if in_json:
        ids = {"held_by": [job.pk for job in held], "next_jobs": [job.pk for job in waiting]}
        about = {name: value for state in states for name, value in _as_json(state).items()}
        console.json(about | ids | {"rate": rates[0].as_json() if rates else None})
        return Exit.DONE
    if states or rates:
        _print(console, states, rates)
        console.line()
    print_jobs(console, [*held, *waiting], in_json=False)
    return Exit.DONE
