"""What is typed into the search box, as a condition on jobs.

An id (`42`, `#42`), an argument (`payment_id=42`), or a part of a task's name; several words must all match.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Q
from django.utils.text import smart_split, unescape_string_literal

from .. import tasks as registered
from ..exceptions import InvalidArguments
from ..payload import clean, encode
from .parameters import may_be_searched, names_of

ID = re.compile(r"#?([0-9]{1,18})", re.ASCII)
ARGUMENT = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<value>.+)", re.DOTALL)


@dataclass(frozen=True)
class Search:
    """The words of one search."""

    text: str

    @cached_property
    def words(self) -> list[str]:
        """The text in words; quotes keep one together."""
        return list(smart_split(clean(self.text, 1_000)))

    @property
    def names_an_id(self) -> bool:
        """Whether an id is searched for, which the primary key finds wherever it is."""
        return any(ID.fullmatch(word) for word in self.words)

    @property
    def condition(self) -> Q:
        """That all words match."""
        condition = Q()
        for word in self.words:
            condition &= _condition(word)
        return condition


def _condition(word: str) -> Q:
    if number := ID.fullmatch(word):
        return Q(pk=int(number[1]))
    if argument := ARGUMENT.fullmatch(word):
        return _has_argument(argument["name"], argument["value"])
    return Q(task__icontains=_unquoted(word))


def _has_argument(name: str, text: str) -> Q:
    """That the argument `name` was passed with this value: by name, or in the place that a known task has it.

    What is masked is found by nobody.
    """
    condition = Q(pk__in=[])
    for value in _values(text):
        if not may_be_searched(name, value):
            continue
        masking = [task.name for task in registered.tasks if not may_be_searched(name, value, task)]
        found = Q(kwargs__contains={name: value})
        for task in registered.tasks:
            places = names_of(task)
            if name in places:
                found |= Q(task=task.name, **{f"args__{places.index(name)}": value})
        condition |= found & ~Q(task__in=masking)
    return condition


def _values(text: str) -> list[Any]:
    """What the typed text can mean: `42` the number or the text, `"42"` the text alone."""
    try:
        value = json.loads(text)
        encode("The value", value)
    except (ValueError, RecursionError, InvalidArguments):  # no JSON, or none that a job could carry
        return [_unquoted(text)]
    return [value] if isinstance(value, str) else [value, text]


def _unquoted(word: str) -> str:
    try:
        return unescape_string_literal(word)
    except ValueError:
        return word
