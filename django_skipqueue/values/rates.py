"""Rates as texts, such as "50/s": what they mean, and how they are written. Pure."""

import re
from math import isclose
from typing import Any

from ..exceptions import InvalidOption

MOST = 10_000
"""The most jobs a second, and the largest burst: the queued jobs of a key are counted when others are admitted."""

LONGEST_PERIOD = 366 * 86_400

INTERVALS = (1 / MOST, float(LONGEST_PERIOD))
"""The least and the greatest number of seconds for each job."""

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The seconds of each unit."""

TEXT = re.compile(r"([0-9]{1,9})/([0-9]{0,9})([smhd])", re.ASCII)

FORM = 'a number of jobs and a time, such as "50/s", "100/m", "10/h", "1/d" or "3/10s"'


def interval_of(text: Any) -> float:
    """The seconds for each job. Raises `InvalidOption` for a text that is no rate."""
    found = TEXT.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InvalidOption(f"rate takes {FORM}, not {text!r}.")
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
