"""The cells of a carrier's row in the list of workers. Their numbers are queried once for the page."""

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...console.admin.ui.cells import badge, shortened
from ...console.counts import grouped
from .states import CarrierNow
from .words import broker_in_words, clock_time

DETAIL = '{} <span class="skipqueue-detail">{}</span>'


def state(carrier: CarrierNow) -> SafeString:
    shown = {True: "live", False: "late", None: "stale"}[carrier.is_reachable]
    return badge(shown, broker_in_words(carrier))


def name(carrier: CarrierNow) -> SafeString:
    relays = ngettext("%(number)s relay", "%(number)s relays", carrier.relays) % {"number": grouped(carrier.relays)}
    return format_html(
        '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{}</span>',
        shortened(carrier.name),
        " · ".join([gettext("carrier"), relays]),
    )


def held(carrier: CarrierNow) -> str:
    return gettext("%(held)s/%(window)s with it") % {"held": grouped(carrier.held), "window": grouped(carrier.window)}


def oldest(carrier: CarrierNow, now: datetime) -> str:
    if carrier.oldest is None:
        return gettext("nothing")
    return gettext("the oldest since %(time)s") % {"time": clock_time(carrier.oldest, now)}


def refused(carrier: CarrierNow) -> str:
    if not carrier.refused:
        return ""
    return ngettext("%(number)s job refused", "%(number)s jobs refused", carrier.refused) % {
        "number": grouped(carrier.refused)
    }
