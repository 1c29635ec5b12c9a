"""`context.each`: a loop that goes on after the last finished item if its job is attempted again.

Invariant: the cursor never passes an item that is not finished. Without `atomic`, the cursor is written at most once a
second, and at the end of the attempt. If the worker dies, the items since the last write are run again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import FieldDoesNotExist
from django.db import transaction
from django.db.models import CompositePrimaryKey, QuerySet
from django.db.models.query import ModelIterable

from ...exceptions import InvalidOption
from ...queue.store import Store
from ...values.codec import decode, encode
from .record import Entry, record_step

if TYPE_CHECKING:
    from .attempt import AttemptSteps

WRITE_SECONDS = 1.0
"""The shortest time in seconds between two writes of a cursor."""

CHUNK = 500
"""The number of rows that one query reads."""


class Place(NamedTuple):
    """How far a loop has come. It is a single value, so that any thread can read it."""

    done: int
    """The number of finished items."""
    last: Any
    """The key of the last finished item; `None` if there is none."""


class Cursor:
    """Records how far a loop has come. The control loop's thread also calls `write`, before it releases the job."""

    def __init__(self, steps: "AttemptSteps", name: str, place: Place) -> None:
        self._steps, self._name = steps, name
        self.place = self.written = place
        self._written_at = self._started_at = time.monotonic()

    def is_due(self) -> bool:
        return self.written != self.place and time.monotonic() - self._written_at >= WRITE_SECONDS

    def write(self, store: Store) -> Entry | None:
        """Write the place if it has changed. Raises `LeaseLost`."""
        return None if self.place == self.written else self._write(store, is_open=True)

    def end(self, store: Store) -> Entry:
        """Record that the loop is over. Raises `LeaseLost`."""
        return self._write(store, is_open=False)

    def _write(self, store: Store, *, is_open: bool) -> Entry:
        place = self.place
        entry = self.record(store, place, is_open=is_open)
        self.written, self._written_at = place, time.monotonic()
        return entry

    def record(self, store: Store, place: Place, *, is_open: bool = True) -> Entry:
        """Record this place in the open transaction, or at once if none is open. Raises `LeaseLost`."""
        entry = self._steps.entry(
            self._name,
            "each",
            seconds=time.monotonic() - self._started_at,
            result=encode("The cursor", place._asdict()),
            is_open=is_open,
        )
        self._steps.require_lease(record_step(store, self._steps.ref, entry))
        return entry


def loop(steps: "AttemptSteps", name: str, items: Any, by: str) -> Iterator[Any]:
    """Yield the unfinished items. An item is finished when the caller asks for the next item."""
    source = source_of(name, items, by)
    _require_no_transaction(steps, name)
    cursor = _begin(steps, name)
    if cursor is not None:
        steps.add_cursor(cursor)
    return iter(()) if cursor is None else _items(steps, cursor, source)


def _items(steps: "AttemptSteps", cursor: Cursor, source: "Source") -> Iterator[Any]:
    for key, item in source(cursor.place.last):
        _pause(steps, cursor)
        yield item
        cursor.place = Place(cursor.place.done + 1, key)
    _end(steps, cursor)


def call_each(
    steps: "AttemptSteps", name: str, items: Any, function: Callable[[Any], object], by: str, *, atomic: bool
) -> None:
    """Call the function with each unfinished item. With `atomic`, its writes and the cursor are in one transaction."""
    source = source_of(name, items, by)
    if not atomic:
        _require_no_transaction(steps, name)
    cursor = _begin(steps, name)
    if cursor is None:
        return
    if not atomic:  # an atomic loop commits its place with each item, and nobody else may write the place
        steps.add_cursor(cursor)
    for key, item in source(cursor.place.last):
        _pause(steps, cursor)
        after = Place(cursor.place.done + 1, key)
        if atomic:
            with transaction.atomic(using=steps.store.alias):
                function(item)
                entry = cursor.record(steps.store, after)
            cursor.place = cursor.written = after
            steps.note_recorded(entry)
        else:
            function(item)
            cursor.place = after
    _end(steps, cursor)


def _require_no_transaction(steps: "AttemptSteps", name: str) -> None:
    if steps.is_in_transaction():
        raise InvalidOption(
            f"each({name!r}) keeps its place even if the transaction that is open, with all its items, is rolled back. "
            "Call it outside of transaction.atomic(), or with a function and atomic=True."
        )


def _begin(steps: "AttemptSteps", name: str) -> Cursor | None:
    """Return the cursor of this loop; `None` if the loop is over."""
    recorded = steps.begin(name, "each")
    if recorded is not None and recorded.is_over:
        return None
    place = Place(0, None) if recorded is None or recorded.result is None else Place(**decode(recorded.result))
    return Cursor(steps, name, place)


def _pause(steps: "AttemptSteps", cursor: Cursor) -> None:
    """Between two items, write the cursor if it is due, and end the attempt if the worker is stopping."""
    if cursor.is_due():
        steps.note_recorded(cursor.write(steps.store))
    steps.end_if_stopping()


def _end(steps: "AttemptSteps", cursor: Cursor) -> None:
    steps.note_recorded(cursor.end(steps.store))


Source = Callable[[Any], Iterator[tuple[Any, Any]]]
"""Takes the key of the last finished item. Returns the items after it, each with its key."""


def source_of(name: str, items: Any, by: str) -> Source:
    """Return the items in an order that is the same in every attempt. Raises `InvalidOption` if there is none."""
    if isinstance(items, QuerySet):
        return _rows_of(name, items, by)
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise InvalidOption(
            f"each({name!r}) needs a query set, or a sequence such as a list, not {type(items).__name__}: the next "
            "attempt goes on in the middle of it."
        )
    # The key of an item in a sequence is the number of items up to this item.
    return lambda last: ((place + 1, items[place]) for place in range(last or 0, len(items)))


def _rows_of(name: str, items: "QuerySet[Any]", by: str) -> Source:
    def refuse(reason: str) -> InvalidOption:
        return InvalidOption(f"each({name!r}) goes through a query set by its {by!r}, and {reason}.")

    query = items.query
    for is_wrong, reason in (
        (query.is_sliced, "this one is sliced"),
        (query.combinator, f"this one is a {query.combinator}"),
        (query.distinct or query.distinct_fields, "this one has distinct()"),
        (query.order_by or query.extra_order_by, "this one has an order of its own: leave out order_by()"),
        (not query.standard_ordering, "this one is reversed: leave out reverse()"),
        (items._iterable_class is not ModelIterable, "this one has values in place of model instances"),
    ):
        if is_wrong:
            raise refuse(reason)
    try:
        field = items.model._meta.pk if by == "pk" else items.model._meta.get_field(by)
    except FieldDoesNotExist:
        raise refuse(f"{items.model.__name__} has no such field") from None
    if isinstance(field, CompositePrimaryKey) or not getattr(field, "unique", False) or field.null:
        raise refuse("this field is not unique, or may be NULL: give by= a field that is unique and not null")

    def rows(last: Any) -> Iterator[tuple[Any, Any]]:
        column = field.attname  # ordered by the name of a relation, Django would use the other model's order
        ordered = items.order_by(column)
        while True:
            after = ordered if last is None else ordered.filter(**{f"{column}__gt": field.to_python(last)})
            chunk = list(after[:CHUNK])
            for last, found in groupby(chunk, field.value_to_string):
                yield last, next(found)  # only the first: a join may return a row several times
            if len(chunk) < CHUNK:
                return

    return rows
