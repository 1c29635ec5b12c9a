"""The columns of the list of keys of rates. A further one is an entry in `RATE_COLUMNS`."""

from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.columns import Cell, Column
from ...console.counts import grouped
from ...console.durations import roughly, span
from .states import RateState


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


RATE_COLUMNS: tuple[Column[RateState], ...] = (
    Column("key", _("key"), _key),
    Column("rate", _("rate"), lambda state: state.rate or gettext("any number of jobs")),
    Column("held", _("tokens now"), _tokens),
    Column("waiting", _("jobs wait"), lambda state: str(state.waiting)),
    Column("due", _("next admitted"), _due),
    Column("oldest", _("oldest job"), lambda state: span(state.oldest)),
)
