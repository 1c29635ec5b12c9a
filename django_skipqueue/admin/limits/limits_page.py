"""What the page of limits shows: the halted sequences, the keys of rates, and a page of all other keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.http import urlencode

from ...models import Job
from ...operators.ids import is_id
from ...operators.known_names import LONGEST
from ...operators.limit_states import LimitState, halted_by_key, limit_states
from ...operators.rate_states import RateState, rate_states
from ...store import Store
from .columns import COLUMNS, Cell, Column, rows
from .rate_columns import RATE_COLUMNS, RateColumn
from .rate_columns import rows as rows_of_rates

PER_PAGE = 50

MOST_HALTED = 50

MOST_RATES = 50


@dataclass(frozen=True)
class LimitsPage:
    """The keys from one on.

    The address of the next page names a job, not a key: a key may have a secret in it.
    """

    halted: list[LimitState]
    """The first `MOST_HALTED`, on the first page only."""
    keys: list[LimitState]
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
        keys = store.waiting_keys(after=start, is_from=is_from, limit=PER_PAGE + 1)
        halted = halted_by_key(store)
        states = limit_states(store, keys[:PER_PAGE], halted)
        if text:  # the alphabetical order would reveal a secret, one comparison after the other
            states = [state for state in states if not state.is_masked]
        rates = [] if after else rate_states(store, start=text, most=MOST_RATES + 1)
        if text:
            rates = [state for state in rates if not state.is_masked]
        first = [] if text or after else list(halted)[:MOST_HALTED]
        has_next = len(keys) > PER_PAGE
        return cls(limit_states(store, first, halted), states, text, after[0] if after else None, has_next, rates)

    @property
    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    @property
    def halted_rows(self) -> list[list[tuple[Column, Cell]]]:
        return rows(self.halted)

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


def _key_of(job_id: str) -> tuple[int, str] | None:
    """The id and the key of this job; `None` if there is no such job, or it has no key."""
    if not is_id(job_id):
        return None
    key = Job.objects.filter(pk=job_id).values_list("limit_key", flat=True).first()
    return (int(job_id), key) if key else None
