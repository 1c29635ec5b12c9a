"""`KeyTable`: what a part gives to the command and the page `limits`, which show the keys for which jobs wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...console.admin.ui.cells import Column, Rows, rows
from ...console.parts import PartConsole, consoles

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ...models import Job
    from ...queue.store import Store

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class Card(Generic[State]):
    """A table of the page."""

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
class Cards:
    """What one part shows on the page. A card without a key is left out."""

    first: Sequence[Card[Any]] = ()
    listed: Sequence[Card[Any]] = ()
    """Stand below the first cards of all parts."""
    next_id: int | None = None
    """The job after whose key the next page begins; `None`: there is no next page."""


@dataclass(frozen=True, kw_only=True)
class KeyTable(Generic[State]):
    """The keys of one part."""

    headings: tuple[str, ...]
    """Of the command's table."""
    row: Callable[[State], list[str]]
    first: Callable[["Store", int], Sequence[State]]
    """Returns the keys that the command lists. Its second argument: the maximum of keys."""
    of_key: Callable[["Store", str], Sequence[State]]
    """Returns the state of this key, if jobs wait for it."""
    as_json: Callable[[State], dict[str, Any]]
    key_as_json: Callable[[Sequence[State]], dict[str, Any]]
    """What the object of one key has of this part, given what `of_key` returns."""
    holders: "Callable[[str], QuerySet[Job]] | None" = None
    """The jobs that hold something of this key."""
    waiting: "Callable[[str], QuerySet[Job]]"
    """The jobs that wait for something of this key, the next one first."""
    cards: Callable[["Store", str, str | None], Cards]
    """Returns what the page shows. Its arguments: the store; the text from which the alphabetical lists begin; and the
    key after which the page begins, `None` if it is the first page."""
    start: "Callable[[Job], str | None] | None" = None
    """Returns the key after which a page begins whose address names this job."""


@dataclass(frozen=True, kw_only=True)
class KeyedConsole(PartConsole):
    """What a part whose jobs have keys gives to operators."""

    keys: KeyTable[Any]


def tables() -> list[KeyTable[Any]]:
    return [console.keys for console in consoles() if isinstance(console, KeyedConsole)]
