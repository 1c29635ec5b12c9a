"""What the page of limits shows: the halted sequences, the keys of rates, and a page of all other keys.

Invariant: a key with a secret in it takes no place in an alphabetical list. Its place would reveal the secret, one
comparison with a typed text after the other.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.utils.http import urlencode

from ...models import Job
from ...operators.arguments import redacted
from ...operators.ids import is_id
from ...operators.known_names import LONGEST
from ...operators.limit_states import LimitState, halted_by_key, limit_states
from ...operators.rate_states import RateState, rate_states_of
from ...store import Store
from ...store.limits_now import HaltedKey
from .columns import COLUMNS, Cell, Column, rows
from .rate_columns import RATE_COLUMNS, RateColumn
from .rate_columns import rows as rows_of_rates

PER_PAGE = 50

MOST_HALTED = 50

MOST_RATES = 50

MOST_MASKED = 50

SECONDS = 2.0
"""For how long the lists are filled, if many keys are left out. The time does not depend on a typed text."""


@dataclass(frozen=True)
class LimitsPage:
    """The keys from one on.

    The address of the next page names a job, not a key: a key may have a secret in it.
    """

    halted: list[LimitState]
    """The first `MOST_HALTED`, on the first page only."""
    masked: list[LimitState]
    """Keys with a secret in them, of the jobs that were blocked first; on the first page only."""
    keys: list[LimitState]
    """A page of all others, in alphabetical order."""
    text: str
    """Where the alphabetical list begins, as typed."""
    after: int | None
    """The job after whose key the page begins."""
    has_next: bool
    rates: list[RateState]
    """The first keys of rates from the text on, one more than `MOST_RATES` if there are more."""

    @classmethod
    def of(cls, store: Store, query: Mapping[str, str]) -> "LimitsPage":
        text, after = query.get("from", "").replace("\0", "")[:LONGEST].strip(), _key_of(query.get("after", ""))
        start, is_from = (after[1], False) if after else (text, True)
        halted = halted_by_key(store)
        keys = list(islice(_keys(store, start, is_from, halted), PER_PAGE + 1))
        rates = [] if after else list(islice(_rates(store, text), MOST_RATES + 1))
        is_first = not (text or after)
        return cls(
            limit_states(store, list(halted)[:MOST_HALTED], halted) if is_first else [],
            _masked(store, halted) if is_first else [],
            keys[:PER_PAGE],
            text,
            after[0] if after else None,
            len(keys) > PER_PAGE,
            rates,
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    @property
    def halted_rows(self) -> list[list[tuple[Column, Cell]]]:
        return rows(self.halted)

    @property
    def masked_rows(self) -> list[list[tuple[Column, Cell]]]:
        return rows(self.masked)

    @property
    def rows(self) -> list[list[tuple[Column, Cell]]]:
        return rows(self.keys)

    @property
    def rate_columns(self) -> tuple[RateColumn, ...]:
        return RATE_COLUMNS

    @property
    def rate_rows(self) -> list[list[tuple[RateColumn, Cell]]]:
        return rows_of_rates(self.rates[:MOST_RATES])

    @property
    def most_rates(self) -> int:
        """How many keys of rates are shown, if there are more; else 0."""
        return MOST_RATES if len(self.rates) > MOST_RATES else 0

    @property
    def next(self) -> str:
        query: dict[str, Any] = {"from": self.text} if self.text else {}
        return f"?{urlencode(query | {'after': self.keys[-1].now.next_id})}" if self.has_next and self.keys else ""


def _keys(store: Store, start: str, is_from: bool, halted: Mapping[str, HaltedKey]) -> Iterator[LimitState]:
    """The keys with waiting jobs after a text, in alphabetical order, as long as there is time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and (keys := store.waiting_keys(after=start, is_from=is_from, limit=PER_PAGE + 1)):
        yield from (state for state in limit_states(store, keys, halted) if not state.is_masked)
        start, is_from = keys[-1], False


def _rates(store: Store, start: str) -> Iterator[RateState]:
    """The keys of rates with waiting jobs from a text on, in alphabetical order, as long as there is time."""
    end = time.monotonic() + SECONDS
    keys = [*([start] if start else []), *store.blocked_rates(after=start, limit=MOST_RATES + 1)]
    while keys and time.monotonic() < end:
        yield from (state for state in rate_states_of(store, keys) if not state.is_masked)
        keys = list(store.blocked_rates(after=keys[-1], limit=MOST_RATES + 1))


def _masked(store: Store, halted: Mapping[str, HaltedKey]) -> list[LimitState]:
    states = limit_states(store, store.first_blocked_keys(most=MOST_MASKED), halted)
    return [state for state in states if state.is_masked]


def _key_of(job_id: str) -> tuple[int, str] | None:
    """The id and the key of this job; `None` if there is no such job, it has no key, or a secret is in its key."""
    job = Job.objects.filter(pk=job_id).first() if is_id(job_id) else None
    if job is None or not job.limit_key:
        return None
    is_masked = redacted(job.task, job.args, job.kwargs).text(job.limit_key) != job.limit_key
    return None if is_masked else (job.pk, job.limit_key)
