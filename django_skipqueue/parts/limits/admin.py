"""The admin's tables of limit keys: halted sequences, keys with a secret, and all keys with waiting jobs.

The columns of the tables are the facts of `LIMIT_OF_KEY`.
"""

from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.jobs.filters import KeyFilter
from ...console.admin.ui.addresses import address_of
from ...console.admin.ui.cells import Cell, badge, columns_of, rows
from ...console.counts import grouped
from ...console.durations import span
from ...console.facts import Renderers
from ...console.job_states import Key
from ...models import Status
from ...queue.store import Store
from ..keyed.admin import unmasked_states
from ..keyed.console import KeyCard, KeyCards
from .states import (
    LIMIT_OF_KEY,
    LimitState,
    first_blocked_keys,
    first_states,
    halted_by_key,
    key_of_limit,
    limit_states,
    waiting_keys,
)


def _key(state: LimitState) -> Cell:
    # A link to the key's waiting jobs. The key may contain a secret, so the URL names one of its jobs instead.
    query = {"status": Status.BLOCKED.value, "limit_of": str(state.current.next_id)}
    address = address_of("job_changelist", query=query)
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', address, state.key)


def _state(state: LimitState) -> Cell:
    if state.halted is None:
        return badge(Status.BLOCKED.value, gettext("waits"))
    address = address_of("job_change", state.halted.job_id)
    since_failure = gettext("job %(id)s failed %(age)s ago") % {
        "id": state.halted.job_id,
        "age": span(state.halted.seconds),
    }
    return format_html(
        '{} <a class="skipqueue-detail" href="{}">{}</a>', badge("failed", gettext("halted")), address, since_failure
    )


def _held(state: LimitState) -> Cell:
    if state.current.capacity is None or state.current.kind == "fair":  # any number of jobs may run
        return str(state.held)
    return gettext("%(held)s of %(capacity)s") % {"held": state.held, "capacity": grouped(state.current.capacity)}


LIMIT_RENDERERS: Renderers[LimitState] = {
    "key": _key,
    "kind": lambda state: state.kind,
    "state": _state,
    "held": _held,
    "capacity": None,
}

LIMIT_COLUMNS = columns_of(LIMIT_OF_KEY, (), LIMIT_RENDERERS)

MOST_KEYS_ON_DASHBOARD = 10


def first_keys(situation: Any) -> dict[str, Any]:
    """Return the halted sequences, then the keys whose jobs have waited longest."""
    return {
        "columns": LIMIT_COLUMNS,
        "rows": rows(LIMIT_COLUMNS, first_states(situation.store, most=MOST_KEYS_ON_DASHBOARD)),
    }


PER_PAGE = 50

MOST_HALTED = 50

MOST_MASKED = 50


def cards(store: Store, text: str, after: str | None) -> KeyCards:
    """Return the tables of one page: keys without a secret. The first page also has halted keys, and keys with one."""
    halted = halted_by_key(store)
    states = unmasked_states(
        lambda start: waiting_keys(store, after=start, limit=PER_PAGE + 1),
        lambda keys: limit_states(store, keys, halted=halted),
        most=PER_PAGE + 1,
        text=text,
        after=after,
    )
    alphabetical = KeyCard(
        name="keys", title=_("Keys with waiting jobs"), columns=LIMIT_COLUMNS, states=states[:PER_PAGE]
    )
    next_id = alphabetical.states[-1].current.next_id if len(states) > PER_PAGE else None
    if text or after is not None:
        return KeyCards(listed=[alphabetical], next_id=next_id)
    halted_card = KeyCard(
        name="halted",
        title=_("Halted sequences"),
        about=_("Their jobs wait until somebody retries, discards or deletes the job that failed."),
        columns=LIMIT_COLUMNS,
        states=limit_states(store, list(halted)[:MOST_HALTED], halted=halted),
    )
    masked_card = KeyCard(
        name="masked",
        title=_("Keys with a secret"),
        about=_(
            "The keys of the jobs that have waited longest. The alphabetical list leaves these keys out, because their "
            "position in it would reveal the secret."
        ),
        columns=LIMIT_COLUMNS,
        states=[
            state
            for state in limit_states(store, first_blocked_keys(store, most=MOST_MASKED), halted=halted)
            if state.is_masked
        ],
    )
    return KeyCards(first=[halted_card, masked_card], listed=[alphabetical], next_id=next_id)


class LimitFilter(KeyFilter):
    title = _("limit key")
    parameter_name = "limit_of"
    column = "limit_key"
    without = _("of a job that no longer exists, or has no limit")

    def index(self, text: str) -> Key:
        return key_of_limit(text)


def job_filters() -> tuple[type[LimitFilter], ...]:
    return (LimitFilter,)
