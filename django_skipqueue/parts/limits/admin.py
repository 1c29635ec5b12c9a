"""The page of limits: the halted sequences, the keys of rates, and a page of all other keys, with its columns.

A further column is a function of a `LimitState`, and an entry in `COLUMNS`.

Invariant: a key with a secret in it takes no place in an alphabetical list. Its place would reveal the secret, one
comparison with a typed text after the other.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.cells import badge
from ...console.admin.ui.columns import Cell, Column, Rows, rows
from ...console.arguments import redacted
from ...console.counts import grouped
from ...console.durations import span
from ...console.known_names import LONGEST
from ...console.search import is_id
from ...models import Job, Status
from ...queue.store import Store
from ..rates.admin import RATE_COLUMNS
from ..rates.states import RateState, rate_states_of, waiting_rate_keys
from .now import HaltedKey, first_blocked_keys, waiting_keys
from .states import LimitState, first_states, halted_by_key, limit_states


def _key(state: LimitState) -> Cell:
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', _waiting_jobs(state), state.key)


def _state(state: LimitState) -> Cell:
    if state.halted is None:
        return badge(Status.BLOCKED.value, gettext("waits"))
    address = reverse("admin:django_skipqueue_job_change", args=[state.halted.job_id])
    failed = gettext("job %(id)s failed %(age)s ago") % {"id": state.halted.job_id, "age": span(state.halted.seconds)}
    return format_html(
        '{} <a class="skipqueue-detail" href="{}">{}</a>', badge("failed", gettext("halted")), address, failed
    )


def _held(state: LimitState) -> Cell:
    if state.now.capacity is None or state.now.kind == "fair":  # it has no limit
        return str(state.held)
    return gettext("%(held)s of %(capacity)s") % {"held": state.held, "capacity": grouped(state.now.capacity)}


def _waiting_jobs(state: LimitState) -> str:
    """The address of the list of its waiting jobs. The key may have a secret in it, so it names a job of the key."""
    query = {"status": Status.BLOCKED.value, "limit_of": str(state.now.next_id)}
    return reverse("admin:django_skipqueue_job_changelist", query=query)


COLUMNS: tuple[Column[LimitState], ...] = (
    Column("key", _("key"), _key),
    Column("kind", _("kind"), lambda state: state.kind),
    Column("state", _("state"), _state),
    Column("held", _("permits held"), _held),
    Column("waiting", _("jobs wait"), lambda state: str(state.waiting)),
    Column("oldest", _("oldest job"), lambda state: span(state.oldest)),
)

MOST_ON_DASHBOARD = 10


def first_keys(store: Store) -> dict[str, Any]:
    """The halted sequences, then the keys whose jobs have waited for the longest."""
    return {"columns": COLUMNS, "rows": rows(COLUMNS, first_states(store, most=MOST_ON_DASHBOARD))}


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

    columns = COLUMNS
    rate_columns = RATE_COLUMNS

    @property
    def halted_rows(self) -> Rows[LimitState]:
        return rows(COLUMNS, self.halted)

    @property
    def masked_rows(self) -> Rows[LimitState]:
        return rows(COLUMNS, self.masked)

    @property
    def rows(self) -> Rows[LimitState]:
        return rows(COLUMNS, self.keys)

    @property
    def rate_rows(self) -> Rows[RateState]:
        return rows(RATE_COLUMNS, self.rates[:MOST_RATES])

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
    while time.monotonic() < end and (keys := waiting_keys(store, after=start, is_from=is_from, limit=PER_PAGE + 1)):
        yield from (state for state in limit_states(store, keys, halted) if not state.is_masked)
        start, is_from = keys[-1], False


def _rates(store: Store, start: str) -> Iterator[RateState]:
    """The keys of rates with waiting jobs from a text on, in alphabetical order, as long as there is time."""
    end = time.monotonic() + SECONDS
    keys = [*([start] if start else []), *waiting_rate_keys(store, after=start, limit=MOST_RATES + 1)]
    while keys and time.monotonic() < end:
        yield from (state for state in rate_states_of(store, keys) if not state.is_masked)
        keys = waiting_rate_keys(store, after=keys[-1], limit=MOST_RATES + 1)


def _masked(store: Store, halted: Mapping[str, HaltedKey]) -> list[LimitState]:
    states = limit_states(store, first_blocked_keys(store, most=MOST_MASKED), halted)
    return [state for state in states if state.is_masked]


def _key_of(job_id: str) -> tuple[int, str] | None:
    """The id and the key of this job; `None` if there is no such job, it has no key, or a secret is in its key."""
    job = Job.objects.filter(pk=job_id).first() if is_id(job_id) else None
    if job is None or not job.limit_key:
        return None
    is_masked = redacted(job.task, job.args, job.kwargs).text(job.limit_key) != job.limit_key
    return None if is_masked else (job.pk, job.limit_key)
