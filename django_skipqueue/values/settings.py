"""Settings that are more than a number or a string: the databases, retentions, rates and queue limits."""

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
    """The settings of a project with one queue database. The part for several databases overrides its methods."""

    database: str = "default"
    """The alias of the queue's database. If there are several databases, the first one, which new jobs go to by
    default."""

    @property
    def queue_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that new jobs may be put into."""
        return (self.database,)

    @property
    def served_databases(self) -> tuple[str, ...]:
        """The aliases of the databases that have workers and admin pages, including those that take no new jobs."""
        return self.queue_databases

    @property
    def serves_several(self) -> bool:
        """Whether several databases have workers and admin pages. If so, logs and pages name the database."""
        return len(self.served_databases) > 1

    @property
    def is_spread(self) -> bool:
        """Whether the key of a job chooses its database, and jobs without a key go to each database in turn."""
        return False

    def may_hold_jobs(self, alias: str) -> bool:
        """Whether the options of a task or call may name this database."""
        return True

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the project's values by field name, and add the values of fields that are computed from them."""
        return given

    @classmethod
    def problems_together(cls, given: Mapping[Any, Any]) -> Iterator[str]:  # noqa: ARG003 (for a subclass)
        """Yield one sentence for each value that conflicts with another value. `given` is the setting `SKIPQUEUE`."""
        return iter(())


LONGEST_RETENTION = timedelta(days=100 * 365)

Retention = timedelta | int | float | None
"""How long something is kept: a timedelta, a number of seconds, or `None` for forever."""


def as_time(retention: Retention) -> timedelta | None:
    """Convert a retention to a timedelta; `None` means forever."""
    return timedelta(seconds=retention) if isinstance(retention, int | float) else retention


def is_retention(retention: object) -> bool:
    if isinstance(retention, bool):
        return False
    if isinstance(retention, timedelta):
        return timedelta(0) <= retention <= LONGEST_RETENTION
    seconds_allowed = LONGEST_RETENTION.total_seconds()
    return retention is None or (isinstance(retention, int | float) and 0 <= retention <= seconds_allowed)


MOST_A_SECOND = 10_000
"""The highest rate in jobs per second, and the largest burst. More would be slow, because each admission counts the
queued jobs with a key."""

LONGEST_PERIOD = 366 * 86_400

INTERVALS = (1 / MOST_A_SECOND, float(LONGEST_PERIOD))
"""The shortest and the longest allowed interval between two jobs, in seconds."""

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The number of seconds in each unit of a rate."""

RATE = re.compile(r"([0-9]{1,9})/([0-9]{0,9})([smhd])", re.ASCII)

RATE_FORM = 'a number of jobs and a time, such as "50/s", "100/m", "10/h", "1/d" or "3/10s"'


def interval_of(text: Any) -> float:
    """Return the seconds between two jobs at this rate: 0.1 for "10/s". Raises `InvalidOption` if it is not a rate."""
    match = RATE.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise InvalidOption(f"rate takes {RATE_FORM}, not {text!r}.")
    jobs, period = int(match[1]), int(match[2] or 1) * UNIT_SECONDS[match[3]]
    if not (jobs and 0 < period <= LONGEST_PERIOD and jobs <= MOST_A_SECOND * period):
        raise InvalidOption(
            f"rate takes at least 1 job in {LONGEST_PERIOD // 86_400} days, at most {MOST_A_SECOND:,} jobs in a "
            f"second, not {text!r}."
        )
    return period / jobs


def is_rate(value: object) -> bool:
    """Whether this value can be the rate of a queue. `None` is allowed, and means no rate."""
    try:
        return value is None or bool(interval_of(value))
    except InvalidOption:
        return False


def burst_of(burst: Any, interval: float) -> int:
    """Return the burst. By default it is the number of jobs in one second. Raises `InvalidOption` for other values."""
    if burst is None:
        return max(1, int(1 / interval + 1e-9))  # the division may yield a little less than a whole number
    if isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= MOST_A_SECOND:
        raise InvalidOption(f"burst must be a whole number of jobs from 1 to {MOST_A_SECOND:,}, not {burst!r}.")
    return burst


def rate_text(interval: float) -> str:
    """Format a rate as the option `rate` accepts it, in the shortest unit in which the number is whole."""
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
"""The highest concurrency limit. A higher limit would be slow, because each admission counts the jobs under the
limit."""

CONCURRENCY = whole(1, LARGEST_LIMIT)


def is_concurrency(value: object) -> bool:
    """Whether this value can limit how many jobs of a queue run at once. `None` means unlimited."""
    return value is None or CONCURRENCY.allows(value)


LIMITS_OF_QUEUES = ("concurrency", "rate")


def queue_problems(name: str, setting: object) -> Iterator[str]:
    """Yield one sentence for each mistake in the setting `QUEUES`. `name` is its name in these sentences.

    A valid value is `{"mail": {"concurrency": 20, "rate": "50/s"}, "imports": {"concurrency": None}}`, for example.
    """
    if not isinstance(setting, dict):
        yield (
            f"{name} must be a dict of limits by the name of a queue, not {setting!r}. Which queues a worker serves is "
            "an option of runworker: --queues, or SKIPQUEUE_QUEUES in its environment."
        )
        return
    for queue, limits in setting.items():
        queue_path = f"{name}[{queue!r}]"
        if not isinstance(queue, str) or not queue or queue.strip() != queue or "," in queue:
            yield f"{name} has the key {queue!r}; a key is the name of a queue."
        elif not isinstance(limits, dict):
            yield f"{queue_path} must be a dict, not {limits!r}."
        else:
            for key, value in limits.items():
                at = f"{queue_path}[{key!r}]"
                if key not in LIMITS_OF_QUEUES:
                    yield f"{queue_path} has no key {key!r}. It knows {', '.join(LIMITS_OF_QUEUES)}."
                elif key == "concurrency" and not is_concurrency(value):
                    yield f"{at} must be {CONCURRENCY}, or None for a limit that is set in the admin, not {value!r}."
                elif key == "rate" and not is_rate(value):
                    yield (
                        f"{at} must be {RATE_FORM}, at most {MOST_A_SECOND:,} in a second, or None for a rate that is "
                        f"set in the admin, not {value!r}."
                    )
