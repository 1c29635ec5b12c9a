"""The methods that read the keys of limits, sequences and rates. Their cost does not grow with the number of jobs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..values.codec import decode_shown
from . import policy_sql
from .statements import Statements, raised

MOST_HALTING = 5_000
"""Failed jobs of sequences that are looked at, those first that failed first."""

MOST_COUNTED = 500
"""Jobs of a key that are counted: of those that hold a permit, and of those that wait for one."""

MOST_BLOCKED = 10_000
"""Blocked jobs that are counted by queue."""

MOST_FIRST_BLOCKED = 2_000
"""Blocked jobs, those first that were enqueued first, whose keys are looked at."""


class HaltedKey(NamedTuple):
    key: str
    job_id: int
    """The job that failed."""
    seconds: float
    """Since then."""


class KeyNow(NamedTuple):
    key: str
    next_id: int
    """The job that is admitted next; its task and its arguments say which part of the key is to be masked."""
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    kind: str
    capacity: int | None
    """`None`: any number, if the limit of a queue was removed."""
    held: int
    """Jobs that hold a permit; above `MOST_COUNTED`: more than that."""
    waiting: int
    """Jobs that wait for one; above `MOST_COUNTED`: more than that."""
    oldest: float
    """Seconds since the first of the counted jobs was due."""


class RateKeyNow(NamedTuple):
    key: str
    next_id: int
    """The job that is admitted next; its task and its arguments say which part of the key is to be masked."""
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    interval: float | None
    """Seconds for each job; `None`: any number, if the rate of a queue was removed."""
    burst: int | None
    tokens: int | None
    """How many jobs may start now; `None`: any number."""
    waiting: int
    """Jobs that wait for a token; above `MOST_COUNTED`: more than that."""
    due_in: float | None
    """Seconds until the next one is admitted, below 0 if it is late; `None`: a supervisor has not looked yet."""
    oldest: float
    """Seconds since the first of the counted jobs was due."""


class BlockedNow(NamedTuple):
    queues: dict[str, int]
    is_least: bool
    """Whether there are more blocked jobs than were counted."""


class ObservingLimits(Statements):
    """Used by pages, commands, metrics, the doctor and the alerts."""

    def halted_keys(self, *, limit: int = MOST_HALTING) -> list[HaltedKey]:
        """The sequences that have halted and keep jobs waiting, the longest first.

        limit: failed jobs that are looked at.
        """
        return [HaltedKey(*row) for row in self.rows(policy_sql.HALTED_KEYS, {"limit": limit})]

    def waiting_keys(self, *, after: str = "", is_from: bool = False, limit: int) -> list[str]:
        """Keys with waiting jobs, alphabetically after `after`; with `is_from`, from that key on."""
        values = {"after": after, "is_from": is_from, "limit": limit}
        return [key for (key,) in self.rows(policy_sql.WAITING_KEYS, values)]

    def first_blocked_keys(self, *, most: int) -> list[str]:
        values = {"limit": MOST_FIRST_BLOCKED, "most": most}
        return [key for (key,) in self.rows(policy_sql.FIRST_BLOCKED_KEYS, values)]

    def keys_now(self, keys: Sequence[str]) -> list[KeyNow]:
        rows = self.rows(policy_sql.KEYS_NOW, {"keys": list(keys), "limit": MOST_COUNTED + 1}) if keys else []
        return [
            KeyNow(key, next_id, task, decode_shown(args), decode_shown(kwargs), *row)
            for key, next_id, task, args, kwargs, *row in rows
        ]

    def rate_keys_now(self, keys: Sequence[str]) -> list[RateKeyNow]:
        values = {"keys": list(keys), "limit": MOST_COUNTED + 1}
        rows = self.rows(policy_sql.RATE_KEYS_NOW, values) if keys else []
        return [
            RateKeyNow(key, next_id, task, decode_shown(args), decode_shown(kwargs), *row)
            for key, next_id, task, args, kwargs, *row in rows
        ]

    def blocked_now(self) -> BlockedNow:
        queues = dict(self.rows(policy_sql.BLOCKED_BY_QUEUE, {"limit": MOST_BLOCKED + 1}))
        return BlockedNow(queues, sum(queues.values()) > MOST_BLOCKED)

    def estimated_blocked(self, *, most: int) -> dict[str, int]:
        """The number of blocked jobs of each queue that has any. If there are more than `most`, it is estimated."""
        counts = dict(self.rows(policy_sql.BLOCKED_BY_QUEUE, {"limit": most}))
        if sum(counts.values()) < most:
            return counts
        return raised(counts, self.expected_rows(policy_sql.EXPECTED_BLOCKED))
