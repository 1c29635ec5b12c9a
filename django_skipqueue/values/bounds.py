"""The numbers that settings, options of tasks and options of `runworker` may have, each limit once. Pure.

What somebody meant who has mistyped a name is suggested here as well.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

DAY = 86_400


@dataclass(frozen=True)
class Limit:
    """A range of numbers, both ends included. Its text completes the sentence "it must be …"."""

    least: float
    most: float
    is_whole: bool = False
    above: bool = False
    """Whether the least number itself is too small."""

    def allows(self, value: object) -> bool:
        """Whether this is a number within the range. True and False are no numbers."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        if self.above:
            return f"a number of seconds above {self.least:g}, at most {self.most:,.0f}"
        kind = "an integer" if self.is_whole else "a number of seconds"
        return f"{kind} from {self.least:,g} to {self.most:,.0f}"


def whole(least: int, most: int) -> Limit:
    return Limit(least, most, is_whole=True)


LONGEST_WAIT = 14 * DAY
"""Seconds for which a process may be told to wait: beyond 24 days the system's own calls take no timeout."""

SMALLINT, INTEGER = 32_767, 2_147_483_647
"""The largest numbers that these columns of PostgreSQL hold."""

LARGEST_JSON = 256 * 1024 * 1024
"""Bytes in the largest JSON text that a `jsonb` column takes."""

LIMITS = {
    "priority": whole(-100, 100),
    "max_attempts": whole(1, SMALLINT),
    "timeout": Limit(0, 1000 * 365 * DAY, above=True),
    "poll_interval": Limit(0.01, LONGEST_WAIT),
    "heartbeat_interval": Limit(0, LONGEST_WAIT, above=True),
    "worker_timeout": Limit(1, LONGEST_WAIT),
    "shutdown_timeout": Limit(0, LONGEST_WAIT),
    "unknown_task_grace": Limit(0, 100 * 365 * DAY, above=True),
    "max_argument_bytes": whole(1, LARGEST_JSON),
    "max_result_bytes": whole(1, LARGEST_JSON),
    "concurrency": whole(1, 10_000),
    "processes": whole(1, 1_000),
    "max_jobs": whole(1, INTEGER),
    "max_jobs_per_worker": whole(1, INTEGER),
    "max_memory_mb": whole(1, INTEGER),
    "health_port": whole(1, 65_535),
    "window": whole(1, 100_000),
    "wait": Limit(1, LONGEST_WAIT),
    "max_message_size": whole(65_536, 512 * 1024 * 1024),
}
"""By the name of the setting or the option, which have the same name wherever both exist."""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not in `known`."""
    return close_to(name, known) or f" It knows {', '.join(sorted(known))}."


def close_to(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not in `known`; empty if no known name is like it."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
