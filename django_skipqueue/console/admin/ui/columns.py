"""The columns of a list: a column is a name, a title, and a function of what a row is about."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from django.utils.safestring import SafeString

T = TypeVar("T")

Cell = SafeString | str

NOTHING = "\N{EN DASH}"
"""In a cell of which there is nothing to say."""


class Column(NamedTuple, Generic[T]):
    name: str
    """For the style sheet: the class of its cells is `field-NAME`."""
    title: Any
    cell: Callable[[T], Cell]


Rows = list[list[tuple[Column[T], Cell]]]
"""For each row its columns, and their cells."""


def rows(columns: Iterable[Column[T]], listed: Iterable[T]) -> Rows[T]:
    return [[(column, column.cell(each)) for column in columns] for each in listed]
