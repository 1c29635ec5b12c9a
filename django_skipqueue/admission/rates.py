"""The option by which a task limits how often its jobs start: `rate`. Pure.

Invariant: an object that exists is valid, except for the names of arguments, which `require_arguments` checks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from ..exceptions import InvalidOption
from .options import checked_name, key_of, names_of

MOST = 10_000
"""The most jobs a second, and the largest burst: the queued jobs of a key are counted when others are admitted."""

LONGEST_PERIOD = 366 * 86_400

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The seconds of each unit."""

TEXT = re.compile(r"([0-9]{1,9})/([0-9]{0,9})([smhd])", re.ASCII)


@dataclass(frozen=True)
class Rate:
    """How often jobs may start, for each key; made by `rate`."""

    interval: float
    """Seconds for each job."""
    burst: int
    """How many may start at once after a time without any."""
    names: tuple[str, ...] = ()
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a job of this task with these arguments, by name."""
        key = key_of("rate", self.name or task, self.names, arguments)
        return {"rate_key": key, "rate_interval": self.interval, "rate_burst": self.burst}


def rate(text: str, /, *, by: str | tuple[str, ...] = (), burst: int | None = None, name: str | None = None) -> Rate:
    """At most so many jobs start in a time: `@job(rate=rate("100/m", by="tenant"))`.

    text: a number of jobs, and a second, minute, hour or day: "50/s", "100/m", "10/h", "1/d"; also "3/10s".
    by: the argument, or the arguments, whose values make the key; by default there is one key for the whole task.
    burst: how many may start at once after a time without any; default: as many as are due in a second, at least 1.
    name: tasks that give the same name share their rate; by default each task has its own.

    Raises `InvalidOption` for a value that cannot be used.
    """
    interval = interval_of(text)
    return Rate(interval, burst_of(burst, interval), names_of("rate(by=…)", by), checked_name("rate", name))


def interval_of(text: Any) -> float:
    """The seconds for each job. Raises `InvalidOption` for a text that is no rate."""
    found = TEXT.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InvalidOption(
            f'rate takes a number of jobs and a time, such as "50/s", "100/m", "10/h", "1/d" or "3/10s", not {text!r}.'
        )
    jobs, period = int(found[1]), int(found[2] or 1) * SECONDS[found[3]]
    if not (jobs and 0 < period <= LONGEST_PERIOD and jobs <= MOST * period):
        raise InvalidOption(
            f"rate takes at least 1 job in {LONGEST_PERIOD // 86_400} days, at most {MOST:,} jobs in a second, "
            f"not {text!r}."
        )
    return period / jobs


def burst_of(burst: Any, interval: float) -> int:
    """The burst, or the default. Raises `InvalidOption` for a number that cannot be used."""
    if burst is None:
        return max(1, int(1 / interval + 1e-9))
    if isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= MOST:
        raise InvalidOption(f"burst must be a whole number of jobs from 1 to {MOST:,}, not {burst!r}.")
    return burst


def rate_text(interval: float) -> str:
    """The rate as a text that `rate` takes, by the shortest unit in which it is a whole number."""
    for unit, seconds in SECONDS.items():
        jobs = seconds / interval
        if jobs > 0.5 and isclose(jobs, round(jobs), rel_tol=1e-9):
            return f"{round(jobs)}/{unit}"
    for unit, seconds in reversed(SECONDS.items()):
        units = interval / seconds
        if units > 0.5 and isclose(units, round(units), rel_tol=1e-9):
            return f"1/{round(units)}{unit}"
    return f"{1 / interval:.3g}/s" if interval < 1 else f"1/{interval:.3g}s"
