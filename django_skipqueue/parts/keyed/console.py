"""The subcommand `skipqueue limits`, and what a part with keys (`limits`, `rates`) provides for it and for its page.

The subcommand lists the keys for which jobs wait, and so does the admin page of limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.cells import Column, Rows, rows
from ...console.cli.facts import print_facts
from ...console.cli.list import print_jobs
from ...console.cli.options import positive
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import Console
from ...console.facts import Renderers
from ...console.parts import BarEntry, PartConsole, consoles
from ...events.log_format import printable
from ...queue.store import Store
from ...values.fact import Fact
from ...values.part import later

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ...models import Job

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class KeyCard(Generic[State]):
    """A table of keys on the page."""

    name: str
    title: Any
    about: Any = ""
    """A sentence above the table."""
    columns: tuple[Column[State], ...]
    states: Sequence[State]
    note: Any = ""
    """A sentence below the table."""

    @property
    def rows(self) -> Rows[State]:
        return rows(self.columns, self.states)


@dataclass(frozen=True, kw_only=True)
class KeyCards:
    """The tables of one part on the page. The page leaves out an empty table."""

    first: Sequence[KeyCard[Any]] = ()
    listed: Sequence[KeyCard[Any]] = ()
    """The tables below the tables in `first` of all parts."""
    next_id: int | None = None
    """The id of a job: the next page begins after this job's key; `None` if there is no next page."""


@dataclass(frozen=True, kw_only=True)
class KeyTable(Generic[State]):
    """How to read and show the keys of one part."""

    facts: tuple[Fact[State], ...]
    renderers: Renderers[State]
    """How the command's table shows the facts."""
    first: Callable[[Store, int], Sequence[State]]
    """Returns the states of the keys that the command lists. The second argument is the maximum number of keys."""
    of_key: Callable[[Store, str], Sequence[State]]
    """Returns the state of this key, or nothing if no job waits for the key."""
    key_as_json: Callable[[Sequence[State]], dict[str, Any]]
    """Returns the part's JSON fields for one key, from the result of `of_key`."""
    holders: "Callable[[str], QuerySet[Job]] | None" = None
    """Returns the jobs that hold a permit of this key."""
    waiting: "Callable[[str], QuerySet[Job]]"
    """Returns the jobs that wait for a permit or a token of this key, the next job first."""
    cards: Callable[[Store, str, str | None], KeyCards]
    """Returns the tables of the page. The arguments are the store, the text with which the alphabetical lists begin,
    and the key after which the page begins, `None` for the first page."""
    start: "Callable[[Job], str | None] | None" = None
    """Returns the key of a job. A page can begin after this key; its URL contains the job's id."""


@dataclass(frozen=True, kw_only=True)
class KeyedConsole(PartConsole):
    """What a part whose jobs have keys provides for operators."""

    keys: KeyTable[Any]


def tables() -> list[KeyTable[Any]]:
    return [console.keys for console in consoles() if isinstance(console, KeyedConsole)]


MOST_JOBS_LISTED = 20
"""How many holders of one key, and how many waiting jobs of the key, the command lists."""


class Limits(Watchable):
    name = "limits"
    help = "List the limits, sequences and rates for which jobs wait, or show one with its jobs"
    json_help = "print a JSON object for each key"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", nargs="?", metavar="KEY", help="show this key, and its jobs")
        parser.add_argument("--limit", type=positive, default=100, metavar="N", help="keys to list (default: 100)")

    def run(self, console: Console, **options: Any) -> Exit:
        key, most = options["key"], options["limit"]
        if key is not None:
            return _show(console, key, in_json=options["json"])
        states_by_part = [(table, table.first(Store.default(), most)) for table in tables()]
        _print(console, states_by_part, in_json=options["json"])
        if any(len(states) == most for _table, states in states_by_part):
            console.say(f"These are the first {most:,} keys. --limit lists more.")
        if any(states for _table, states in states_by_part):
            return Exit.DONE
        console.say("No job waits for a limit or a rate.")
        return Exit.NEGATIVE


def _print(
    console: Console, states_by_part: Sequence[tuple[KeyTable[Any], Sequence[Any]]], *, in_json: bool = False
) -> None:
    with_keys = [(table, states) for table, states in states_by_part if states]
    for index, (table, states) in enumerate(with_keys):
        if index and not in_json:
            console.line()
        print_facts(console, table.facts, states, table.renderers, in_json=in_json)


def _show(console: Console, key: str, *, in_json: bool) -> Exit:
    store = Store.default()
    states_by_part = [(table, table.of_key(store, key)) for table in tables()]
    holders = [
        job
        for table, _states in states_by_part
        if table.holders
        for job in table.holders(key).annotate(now=Now()).order_by("pk")[:MOST_JOBS_LISTED]
    ]
    waiting = [
        job for table, _states in states_by_part for job in table.waiting(key).annotate(now=Now())[:MOST_JOBS_LISTED]
    ]
    if not holders and not waiting:
        raise CommandError(printable(f"No job holds a permit of the key {key!r}, or waits for its limit or rate."))
    if in_json:
        fields = {name: value for table, states in states_by_part for name, value in table.key_as_json(states).items()}
        console.json(fields | {"held_by": [job.pk for job in holders], "next_jobs": [job.pk for job in waiting]})
        return Exit.DONE
    if any(states for _table, states in states_by_part):
        _print(console, states_by_part)
        console.line()
    print_jobs(console, [*holders, *waiting], in_json=False)
    return Exit.DONE


CONSOLE = PartConsole(
    subcommands=(Limits(),),
    pages=later(f"{__package__}.admin.pages"),
    bar_entries=(
        BarEntry(
            label=_("Limits"),
            page="job_limits",
            place=80,
            rules=("halted-sequence", "held-permit"),
        ),
    ),
)
