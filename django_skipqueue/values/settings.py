"""The settings that are more than a number or a text: the databases, retentions, and the limits of queues. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..exceptions import InvalidOption
from .bounds import whole
from .rates import FORM, MOST, interval_of


@dataclass(frozen=True, kw_only=True)
class OneDatabase:
    """What is asked about the databases that hold queues. The settings of a part may inherit it, and have several."""

    database: str = "default"
    """The alias of the queue's database; of several, the one that jobs are put into by default: the first."""

    @property
    def queue_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that new jobs may be put into."""
        return (self.database,)

    @property
    def served_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that have workers and pages: those, and the ones that are to go."""
        return self.queue_databases

    @property
    def serves_several(self) -> bool:
        """Whether there is more than one of these: then databases are named, and can be chosen."""
        return len(self.served_databases) > 1

    @property
    def is_spread(self) -> bool:
        """Whether the key of a job chooses its database, and jobs without a key go to each database in turn."""
        return False

    def may_hold_jobs(self, alias: str) -> bool:
        """Whether options may name this database."""
        return True

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The values that the project gives, by the names of fields, with those that follow from them."""
        return given

    @classmethod
    def problems_together(cls, given: Mapping[Any, Any]) -> Iterator[str]:  # noqa: ARG003 (for a subclass)
        """One sentence for each value that does not go together with others. `given`: the setting as it is."""
        return iter(())


LONGEST_RETENTION = timedelta(days=100 * 365)

Retention = timedelta | int | float | None
"""A timedelta or seconds; `None`: for ever."""


def as_time(kept: Retention) -> timedelta | None:
    """A retention as a timedelta; `None`: for ever."""
    return timedelta(seconds=kept) if isinstance(kept, int | float) else kept


def is_retention(kept: object) -> bool:
    if isinstance(kept, bool):
        return False
    if isinstance(kept, timedelta):
        return timedelta(0) <= kept <= LONGEST_RETENTION
    return kept is None or (isinstance(kept, int | float) and 0 <= kept <= LONGEST_RETENTION.total_seconds())


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


CHECKS_OF_LIMITS: dict[str, Callable[[str, Any], Iterator[str]]] = {
    "concurrency": _concurrency_problems,
    "rate": _rate_problems,
}
"""The functions that check the limits of a queue, by key. Each takes the place of the value in the setting as well."""


def queue_problems(name: str, given: object) -> Iterator[str]:
    """One sentence for each part of the setting `QUEUES` that is not valid. `name` is its name in the sentence.

    It may be `{"mail": {"concurrency": 20, "rate": "50/s"}, "imports": {"concurrency": None}}`, for example.
    """
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
                if key in CHECKS_OF_LIMITS:
                    yield from CHECKS_OF_LIMITS[key](f"{place}[{key!r}]", value)
                else:
                    yield f"{place} has no key {key!r}. It knows {', '.join(CHECKS_OF_LIMITS)}."
