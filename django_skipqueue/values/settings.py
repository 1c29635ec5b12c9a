"""Settings that are more than a number or a text: the databases, retentions, rates, and the limits of queues. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import isclose
from typing import Any

from ..exceptions import InvalidOption
from .bounds import whole


@dataclass(frozen=True, kw_only=True)
class OneDatabase:
    """The settings for one database with a queue. The settings of a part may inherit this class, for several."""

    database: str = "default"
    """The alias of the queue's database; of several, the one that jobs are put into by default: the first."""

    @property
    def queue_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that new jobs may be put into."""
        return (self.database,)

    @property
    def served_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that have workers and pages: the retiring databases are among them."""
        return self.queue_databases

    @property
    def serves_several(self) -> bool:
        """Whether several databases have workers and pages: then each database is named, and can be chosen."""
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
        """The values that the project gives, by the names of fields, and the values that follow from them."""
        return given

    @classmethod
    def problems_together(cls, given: Mapping[Any, Any]) -> Iterator[str]:  # noqa: ARG003 (for a subclass)
        """One sentence for each value that does not go together with other values. `given`: the setting `SKIPQUEUE`."""
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


MOST_A_SECOND = 10_000
"""The most jobs a second, and the largest burst: an admission counts the queued jobs of a key."""

LONGEST_PERIOD = 366 * 86_400

INTERVALS = (1 / MOST_A_SECOND, float(LONGEST_PERIOD))
"""The least and the greatest number of seconds for each job."""

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The seconds of each unit."""

RATE = re.compile(r"([0-9]{1,9})/([0-9]{0,9})([smhd])", re.ASCII)

RATE_FORM = 'a number of jobs and a time, such as "50/s", "100/m", "10/h", "1/d" or "3/10s"'


def interval_of(text: Any) -> float:
    """The seconds for each job. Raises `InvalidOption` for a text that is no rate."""
    found = RATE.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InvalidOption(f"rate takes {RATE_FORM}, not {text!r}.")
    jobs, period = int(found[1]), int(found[2] or 1) * UNIT_SECONDS[found[3]]
    if not (jobs and 0 < period <= LONGEST_PERIOD and jobs <= MOST_A_SECOND * period):
        raise InvalidOption(
            f"rate takes at least 1 job in {LONGEST_PERIOD // 86_400} days, at most {MOST_A_SECOND:,} jobs in a "
            f"second, not {text!r}."
        )
    return period / jobs


def is_rate(value: object) -> bool:
    """Whether this can be the rate of a queue. `None`: any rate."""
    try:
        return value is None or bool(interval_of(value))
    except InvalidOption:
        return False


def burst_of(burst: Any, interval: float) -> int:
    """The burst, or the default. Raises `InvalidOption` for a number that cannot be used."""
    if burst is None:
        return max(1, int(1 / interval + 1e-9))
    if isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= MOST_A_SECOND:
        raise InvalidOption(f"burst must be a whole number of jobs from 1 to {MOST_A_SECOND:,}, not {burst!r}.")
    return burst


def rate_text(interval: float) -> str:
    """The rate as a text that `rate` takes, by the shortest unit in which it is a whole number."""
    for unit, seconds in UNIT_SECONDS.items():
        jobs = seconds / interval
        if jobs > 0.5 and isclose(jobs, round(jobs), rel_tol=1e-9):
            return f"{round(jobs)}/{unit}"
    for unit, seconds in reversed(UNIT_SECONDS.items()):
        units = interval / seconds
        if units > 0.5 and isclose(units, round(units), rel_tol=1e-9):
            return f"1/{round(units)}{unit}"
    return f"{1 / interval:.3g}/s" if interval < 1 else f"1/{interval:.3g}s"


LARGEST_LIMIT = 10_000
"""The largest number of permits of one key: each admission counts the permits that are held."""

CONCURRENCY = whole(1, LARGEST_LIMIT)


def is_concurrency(value: object) -> bool:
    """Whether this can be the number of jobs of a queue that may run at once. `None` means unlimited."""
    return value is None or CONCURRENCY.allows(value)


LIMITS_OF_QUEUES = ("concurrency", "rate")


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
                at = f"{place}[{key!r}]"
                if key not in LIMITS_OF_QUEUES:
                    yield f"{place} has no key {key!r}. It knows {', '.join(LIMITS_OF_QUEUES)}."
                elif key == "concurrency" and not is_concurrency(value):
                    yield f"{at} must be {CONCURRENCY}, or None for a limit that is set in the admin, not {value!r}."
                elif key == "rate" and not is_rate(value):
                    yield (
                        f"{at} must be {RATE_FORM}, at most {MOST_A_SECOND:,} in a second, or None for a rate that is "
                        f"set in the admin, not {value!r}."
                    )
