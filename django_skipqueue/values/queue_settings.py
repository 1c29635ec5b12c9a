"""The form of the setting `QUEUES`: the limits of whole queues. Pure.

For example: `{"mail": {"concurrency": 20, "rate": "50/s"}, "imports": {"concurrency": None}}`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ..exceptions import InvalidOption
from .bounds import whole
from .rates import FORM, MOST, interval_of

LARGEST_LIMIT = 10_000
"""The largest number of permits of one key: those that are held are counted whenever one of its jobs is admitted."""

CONCURRENCY = whole(1, LARGEST_LIMIT)


def is_concurrency(value: object) -> bool:
    """Whether this can be the number of jobs of a queue that may run at once: `None` stands for any number."""
    return value is None or CONCURRENCY.allows(value)


def _concurrency_problems(place: str, value: object) -> Iterator[str]:
    if not is_concurrency(value):
        yield f"{place} must be {CONCURRENCY}, or None for a limit that is set in the admin, not {value!r}."


def _rate_problems(place: str, value: object) -> Iterator[str]:
    if value is None:
        return
    try:
        interval_of(value)
    except InvalidOption:
        yield (
            f"{place} must be {FORM}, at most {MOST:,} in a second, or None for a rate that is set in the admin, "
            f"not {value!r}."
        )


KEYS: dict[str, Callable[[str, Any], Iterator[str]]] = {"concurrency": _concurrency_problems, "rate": _rate_problems}
"""The functions that check the limits of a queue, by key. Each takes the place of the value in the setting as well."""


def problems(name: str, given: object) -> Iterator[str]:
    """One sentence for each part that is not valid. `name` is the setting's name in the sentence."""
    if not isinstance(given, dict):
        yield (
            f"{name} must be a dict of limits by the name of a queue, not {given!r}. Which queues a worker serves is "
            "an option of runworker: --queues, or SKIPQUEUE_QUEUES in its environment."
        )
        return
    for queue, limits in given.items():
        place = f"{name}[{queue!r}]"
        if not isinstance(queue, str) or not queue or queue.strip() != queue or "," in queue:
            yield f"{name} has the key {queue!r}; a key is the name of a queue."
        elif not isinstance(limits, dict):
            yield f"{place} must be a dict, not {limits!r}."
        else:
            for key, value in limits.items():
                if key in KEYS:
                    yield from KEYS[key](f"{place}[{key!r}]", value)
                else:
                    yield f"{place} has no key {key!r}. It knows {', '.join(KEYS)}."
