"""Render the facts about a subject (a queue, a worker …): as JSON, as table cells, and as gauges of the metrics.

If a page or a command shows a fact in a special way, such as a link or a bar, it has a renderer for this fact: a
function of the subject. The renderer `None` hides a fact, because another fact's renderer already shows its value.
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
"""For each fact's name, a function that renders the fact of a subject."""

NOTHING = "\N{EN DASH}"
"""The text of a cell without a value."""


def as_json(facts: Sequence[Fact[T]], subject: T) -> dict[str, Any]:
    return {fact.key: plain(fact.value(subject)) for fact in facts if fact.key}


def plain(value: Any) -> Any:
    return {"count": value.shown, "or_more": value.is_capped} if isinstance(value, Count) else value


def columns(facts: Sequence[Fact[T]], subjects: Sequence[T], renderers: Renderers[T]) -> list[tuple[Fact[T], Any]]:
    """Return the facts that become columns of a table of these subjects, each with its renderer or `None`.

    An optional fact without a value is left out.
    """
    return [
        (fact, renderers.get(fact.name))
        for fact in facts
        if fact.title and (fact.name not in renderers or renderers[fact.name] is not None)  # `None` hides the fact
        if not fact.is_optional or any(map(_has_value, map(fact.value, subjects)))
    ]


def _has_value(value: Any) -> bool:
    return bool(value.found or value.is_capped) if isinstance(value, Count) else value is not None


def on_page(fact: Fact[T], subject: T) -> str:
    """Format the fact's value for a page. A subject with times must have the database's time as `now`."""
    value = fact.value(subject)
    if value is None or value == "":
        return NOTHING
    return _formatted(fact, subject, value, duration=span, number=grouped, rate=rate_in_words)


def in_terminal(fact: Fact[T], subject: T) -> str:
    """Format the fact's value for a table of the command line; empty if it is unknown."""
    value = fact.value(subject)
    if value is None:
        return ""
    return _formatted(fact, subject, value, duration=in_words, number="{:,}".format, rate=terse_rate)


def terse_rate(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 1 or not per_minute else f"{per_minute:.1g}"


def _formatted(
    fact: Fact[T],
    subject: Any,
    value: Any,
    *,
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
    """Return a metric's value: the sum for numbers of jobs, otherwise the maximum; `None` if no subject has a time."""
    values = [_as_number(value) for value in map(fact.value, subjects) if value is not None]
    if fact.unit == "jobs":
        return sum(values)
    return max(values, default=None if fact.unit == "time" else 0.0)


def _as_number(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    number: float = value.found if isinstance(value, Count) else value + 0  # turns a bool into an integer
    return number
