"""Renders the facts of a subject: as JSON, as texts of a table, and as gauges.

A page or a command that shows a fact in its own way, such as a link or a bar, has a renderer for it: a function of the
subject. `None` in place of a renderer hides the fact, because the renderer of another fact shows its value.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ..events.log_format import in_words
from ..values.fact import Fact
from .counts import Count, grouped, rate_in_words
from .durations import distance, span

T = TypeVar("T")

Renderers = Mapping[str, Callable[[T], Any] | None]
"""Functions of the subject by the names of the facts."""

NOTHING = "\N{EN DASH}"
"""The text of a cell without a value."""


def as_json(facts: Sequence[Fact[T]], subject: T) -> dict[str, Any]:
    return {fact.key: plain(fact.value(subject)) for fact in facts if fact.key}


def plain(value: Any) -> Any:
    return {"count": value.shown, "or_more": value.is_capped} if isinstance(value, Count) else value


def columns(facts: Sequence[Fact[T]], subjects: Sequence[T], renderers: Renderers[T]) -> list[tuple[Fact[T], Any]]:
    """The facts that are columns of a table of these subjects, each with its renderer, or `None` if it has no renderer.

    An optional fact without a value is left out.
    """
    return [
        (fact, renderers.get(fact.name))
        for fact in facts
        if fact.title and renderers.get(fact.name, as_json) is not None
        if not fact.is_optional or any(map(_is_there, map(fact.value, subjects)))
    ]


def _is_there(value: Any) -> bool:
    return bool(value.found or value.is_capped) if isinstance(value, Count) else value is not None


def on_page(fact: Fact[T], subject: T) -> str:
    """The value on a page. A subject that has times has the database's time as `now`."""
    value = fact.value(subject)
    if value is None or value == "":
        return NOTHING
    return _text(fact, subject, value, span, grouped, rate_in_words)


def in_terminal(fact: Fact[T], subject: T) -> str:
    """The value in a table of the command line; an empty string if nobody knows it."""
    value = fact.value(subject)
    return "" if value is None else _text(fact, subject, value, in_words, "{:,}".format, terse_rate)


def terse_rate(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 1 or not per_minute else f"{per_minute:.1g}"


def _text(
    fact: Fact[T],
    subject: Any,
    value: Any,
    duration: Callable[[float], str],
    number: Callable[[int], str],
    rate: Callable[[float], str],
) -> str:
    if fact.unit == "jobs":
        return f"{number(value.shown)}{'+' if value.is_capped else ''}" if isinstance(value, Count) else number(value)
    if fact.unit == "seconds":
        return duration(max(value, 0.0))
    if fact.unit == "jobs per minute":
        return rate(value)
    if fact.unit == "time":
        return distance(value, subject.now)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def series_of(fact: Fact[T], subjects: Sequence[T]) -> float | None:
    """The value of a series: the sum of numbers of jobs, else the largest value; `None`: no subject has a time."""
    values = [_number(value) for value in map(fact.value, subjects) if value is not None]
    if fact.unit == "jobs":
        return sum(values)
    return max(values, default=None if fact.unit == "time" else 0.0)


def _number(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    number: float = value.found if isinstance(value, Count) else value + 0  # of a bool an integer
    return number
