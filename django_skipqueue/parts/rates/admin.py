"""The columns of the list of keys of rates. A further one is an entry in `RATE_COLUMNS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.counts import grouped
from ...console.durations import roughly, span
from .states import RateState

Cell = SafeString | str


class RateColumn(NamedTuple):
    name: str
    """For the style sheet: the class of its cells is `field-NAME`."""
    title: Any
    cell: Callable[[RateState], Cell]


def _key(state: RateState) -> Cell:
    address = reverse("admin:django_skipqueue_job_change", args=[state.now.next_id])
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', address, state.key)


def _tokens(state: RateState) -> Cell:
    if state.now.tokens is None or state.now.burst is None:
        return gettext("any number")
    return gettext("%(held)s of %(capacity)s") % {
        "held": grouped(state.now.tokens),
        "capacity": grouped(state.now.burst),
    }


def _due(state: RateState) -> Cell:
    if state.now.due_in is None:
        return gettext("soon")
    return gettext("now") if state.now.due_in < 1 else gettext("in %(span)s") % {"span": roughly(state.now.due_in)}


RATE_COLUMNS = (
    RateColumn("key", _("key"), _key),
    RateColumn("rate", _("rate"), lambda state: state.rate or gettext("any number of jobs")),
    RateColumn("held", _("tokens now"), _tokens),
    RateColumn("waiting", _("jobs wait"), lambda state: str(state.waiting)),
    RateColumn("due", _("next admitted"), _due),
    RateColumn("oldest", _("oldest job"), lambda state: span(state.oldest)),
)


def rows(states: list[RateState]) -> list[list[tuple[RateColumn, Cell]]]:
    return [[(column, column.cell(state)) for column in RATE_COLUMNS] for state in states]
