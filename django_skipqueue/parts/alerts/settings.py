"""The setting `ALERTS`: its rules, and the limits that it gives them. Pure.

    {"oldest_waiting": {"*": 300, "mail": 60, "nightly": None}, "no_worker": 60, "webhook": "https://…"}

A number is the limit of all queues together. A dict gives limits to queues; `*` stands for all queues that it does not
name, and `None` is no limit.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

DAY = 86_400

OTHERS = "*"
"""The key of all queues that are not named."""

WEBHOOK = "webhook"
ADDRESS = re.compile(r"https?://[^\s/?#@]+(?=[/?#]|\Z)\S*")


class LimitBounds(NamedTuple):
    """A range of limits, both ends included."""

    unit: Literal["seconds", "share", "jobs"]
    least: float
    most: int
    has_queues: bool = True
    """Whether a queue can have a limit of its own."""

    def allows(self, limit: object) -> bool:
        """Whether this can be a limit. True and False are no numbers."""
        return isinstance(limit, int | float) and not isinstance(limit, bool) and self.least <= limit <= self.most

    def __str__(self) -> str:
        names = {"seconds": "a number of seconds", "share": "a share", "jobs": "a number of jobs"}
        return f"{names[self.unit]} from {self.least:g} to {self.most:,}"


RULES = {
    "oldest_waiting": LimitBounds("seconds", 1, 365 * DAY),
    "no_worker": LimitBounds("seconds", 10, 365 * DAY),
    "failed_share": LimitBounds("share", 0.001, 1),
    "recoveries": LimitBounds("jobs", 1, 1_000_000),
    "schedule_missed": LimitBounds("seconds", 10, 365 * DAY, has_queues=False),
    "sequence_halted": LimitBounds("seconds", 10, 365 * DAY, has_queues=False),
}


class Limit(NamedTuple):
    rule: str
    queue_name: str
    """Empty: all queues that have no limit of their own for this rule."""
    number: float
    others: tuple[str, ...] = ()
    """If `queue_name` is empty: the queues that have one."""


def limits(given: Mapping[str, Any]) -> list[Limit]:
    return [limit for rule in RULES if rule in given for limit in _limits(rule, given[rule])]


def _limits(rule: str, given: float | Mapping[str, float | None]) -> Iterator[Limit]:
    by_queue = given if isinstance(given, Mapping) else {OTHERS: given}
    named = tuple(name for name in by_queue if name != OTHERS)
    for name, number in by_queue.items():
        if number is not None:
            yield Limit(rule, "", number, named) if name == OTHERS else Limit(rule, name, number)


def problems(name: str, given: object) -> Iterator[str]:
    """One sentence for each part that is not valid. `name` is the setting's name in the sentence."""
    if not isinstance(given, dict):
        yield f"{name} must be a dict of rules and limits, not {given!r}."
        return
    for key, value in given.items():
        if key == WEBHOOK:
            if not (isinstance(value, str) and ADDRESS.fullmatch(value)):  # not shown: it may have a secret in it
                yield f"{name}['webhook'] must be an address that begins with http:// or https:// and a host."
        elif key not in RULES:
            yield f"{name} has no rule {key!r}. It knows {', '.join([*RULES, WEBHOOK])}."
        else:
            yield from _problems(f"{name}[{key!r}]", RULES[key], value)


def _problems(name: str, rule: LimitBounds, given: object) -> Iterator[str]:
    if not rule.has_queues:
        if not rule.allows(given):
            yield f"{name} must be {rule}, not {given!r}."
        return
    if not isinstance(given, dict):
        if not rule.allows(given):
            yield f"{name} must be {rule}, or a dict of these by queue, not {given!r}."
        return
    for queue_name, limit in given.items():
        if not isinstance(queue_name, str) or not queue_name:
            yield f"{name} has the key {queue_name!r}; a key is the name of a queue, or '*' for all others."
        elif limit is not None and not rule.allows(limit):
            yield f"{name}[{queue_name!r}] must be {rule}, or None, not {limit!r}."


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    alerts: dict[str, Any] = field(default_factory=dict, metadata={"problems": problems})
    """The limits that raise an alert when exceeded, by rule, and the address of a webhook."""
