"""The cells of a carrier's row in the list of workers. Their numbers are queried once for the page."""

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...carriers.states import CarrierNow
from ...carriers.words import broker_in_words, clock_time
from ...operators.counts import grouped
from ..ui.cells import badge, shortened

DETAIL = '{} <span class="skipqueue-detail">{}</span>'


def state(carrier: CarrierNow) -> SafeString:
    """Whether its relays are alive and reach the broker."""
    shown = {True: "live", False: "late", None: "stale"}[carrier.is_reachable]
    return badge(shown, broker_in_words(carrier))


def name(carrier: CarrierNow) -> SafeString:
    """Its name; what it is, and how many relays it has, below it."""
    relays = ngettext("%(number)s relay", "%(number)s relays", carrier.relays) % {"number": grouped(carrier.relays)}
    return format_html(
        '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{}</span>',
        shortened(carrier.name),
        " · ".join([gettext("carrier"), relays]),
    )


def held(carrier: CarrierNow) -> str:
    """How many jobs are with it, of its window."""
    return gettext("%(held)s/%(window)s with it") % {"held": grouped(carrier.held), "window": grouped(carrier.window)}


def oldest(carrier: CarrierNow, now: datetime) -> str:
    """Since when the oldest of them is with it."""
    if carrier.oldest is None:
        return gettext("nothing")
    return gettext("the oldest since %(time)s") % {"time": clock_time(carrier.oldest, now)}


def refused(carrier: CarrierNow) -> str:
    """How many jobs it has not taken."""
    if not carrier.refused:
        return ""
    return ngettext("%(number)s job refused", "%(number)s jobs refused", carrier.refused) % {
        "number": grouped(carrier.refused)
    }
