"""Chooses one of several databases in turn, and leaves out those that cannot be reached.

Invariant: a database whose transaction is open is never left out: the caller's data is in it.
"""

import itertools
import random
from collections.abc import Sequence

from django.db import connections

from ...queue.reachable import can_be_reached

_turns = itertools.count(random.randrange(1_000_000))  # noqa: S311 (spreads load: processes do not begin alike)


def in_turn(aliases: Sequence[str]) -> str:
    """The next of these databases that can be reached. If none can, one of them: its error says why.

    If the caller has a transaction open in one of them, and in no other, it is that one: the job commits with it.
    """
    if here := _with_transaction(aliases):
        return here
    candidates = _next_first(aliases)
    return next((alias for alias in candidates if can_be_reached(alias)), candidates[0])


def reachable_in_turn(aliases: Sequence[str]) -> list[str]:
    """The databases that can be reached, among these, the next one first; or one alone, as of `in_turn`."""
    if here := _with_transaction(aliases):
        return [here]
    candidates = _next_first(aliases)
    return [alias for alias in candidates if can_be_reached(alias)] or candidates[:1]


def _with_transaction(aliases: Sequence[str]) -> str | None:
    found = [alias for alias in aliases if connections[alias].in_atomic_block]
    return found[0] if len(found) == 1 else None


def _next_first(aliases: Sequence[str]) -> list[str]:
    """All of them, the next one first. The others are shuffled: so they share the jobs of one that is down evenly."""
    first = next(_turns) % len(aliases)
    return [aliases[first], *random.sample([*aliases[:first], *aliases[first + 1 :]], len(aliases) - 1)]
