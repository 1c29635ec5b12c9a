"""The admin's table of rate keys. The user types where it begins. The columns are the facts of `RATE_OF_KEY`."""

from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.addresses import address_of
from ...console.admin.ui.cells import Cell, columns_of
from ...console.counts import grouped
from ...console.durations import roughly
from ...console.facts import Renderers
from ...queue.store import Store
from ..keyed.admin import unmasked_states
from ..keyed.console import KeyCard, KeyCards
from .states import RATE_OF_KEY, RateState, rate_states_of, waiting_rate_keys


def _key(state: RateState) -> Cell:
    address = address_of("job_change", state.current.next_id)
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', address, state.key)


def _tokens(state: RateState) -> Cell:
    if state.current.tokens is None or state.current.burst is None:
        return gettext("any number")
    return gettext("%(held)s of %(capacity)s") % {
        "held": grouped(state.current.tokens),
        "capacity": grouped(state.current.burst),
    }


def _due(state: RateState) -> Cell:
    due_in = state.current.due_in
    if due_in is None:
        return gettext("soon")
    return gettext("now") if due_in < 1 else gettext("in %(span)s") % {"span": roughly(due_in)}


RATE_RENDERERS: Renderers[RateState] = {
    "key": _key,
    "rate": lambda state: state.rate or gettext("any number of jobs"),
    "held": _tokens,
    "due": _due,
}

RATE_COLUMNS = columns_of(RATE_OF_KEY, (), RATE_RENDERERS)

MOST_RATES = 50


def cards(store: Store, text: str, after: str | None) -> KeyCards:
    """Return the table of keys in alphabetical order, from `text` on. Only the first page has this table."""
    if after is not None:
        return KeyCards()
    states = unmasked_states(
        lambda start: waiting_rate_keys(store, after=start, limit=MOST_RATES + 1),
        lambda keys: rate_states_of(store, keys),
        most=MOST_RATES + 1,
        text=text,
    )
    note = gettext("Only the first %(number)s rate limits are shown. Enter a later key in “Start at key” to see more.")
    card = KeyCard(
        name="rates",
        title=_("Rate limits with waiting jobs"),
        columns=RATE_COLUMNS,
        states=states[:MOST_RATES],
        note=note % {"number": MOST_RATES} if len(states) > MOST_RATES else "",
    )
    return KeyCards(first=[card])
