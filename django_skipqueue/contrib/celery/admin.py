"""What the admin shows of carriers and relays: cells in the list of workers, and a notice."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...conf import settings
from ...console.admin.notices import MOST, printed
from ...console.admin.ui.cells import badge, shortened
from ...console.counts import grouped
from ...console.durations import clock_time
from ...console.parts import PartNotice
from ...console.worker_health import Workforce
from ...models import Worker
from ...queue.store import Store
from .conf import carriers
from .states import CarrierNow, carriers_now, relay_names
from .words import broker_in_words, relays_in_words

DETAIL = '{} <span class="skipqueue-detail">{}</span>'


def state(carrier: CarrierNow) -> SafeString:
    shown = {True: "live", False: "late", None: "stale"}[carrier.is_reachable]
    return badge(shown, broker_in_words(carrier))


def name(carrier: CarrierNow) -> SafeString:
    return format_html(
        '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{}</span>',
        shortened(carrier.name),
        " · ".join([gettext("carrier"), relays_in_words(carrier.relays)]),
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


def cells(store: Store, workers: Sequence[Worker]) -> dict[str, dict[str, str]]:
    """The cells of carriers, but for those that `carriers_now` leaves out, and what relays are. Up to two queries."""
    shown: dict[str, dict[str, str]] = {}
    found = {each.name: each for each in carriers_now(store)} if any(each.is_external for each in workers) else {}
    relays = relay_names(store, [each.pk for each in workers if not each.concurrency])
    for worker in workers:
        if worker.pk in relays:
            shown[worker.pk] = {"detail": gettext("relay of %(carrier)s") % {"carrier": shortened(relays[worker.pk])}}
        elif worker.is_external and (carrier := found.get(worker.name)):
            shown[worker.pk] = {
                "state": state(carrier),
                "worker": name(carrier),
                "slots": held(carrier),
                "memory": format_html('<span class="skipqueue-detail">{}</span>', refused(carrier)),
                "runs_now": oldest(carrier, worker.now),  # type: ignore[attr-defined]  # annotated by the list
            }
    return shown


@dataclass(frozen=True)
class NoRelay:
    """Jobs wait for a carrier, and no relay of it is alive, nor a worker that serves their queues."""

    carrier: str
    queue_names: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that starts a relay, for a POSIX shell."""
        return shlex.join(["python", "manage.py", "runrelay", "--carrier", self.carrier])


def without_relay(waiting: Sequence[str]) -> Iterator[PartNotice]:
    """The notices of the carriers whose queues have jobs that wait, and no process that serves them."""
    external = [name for name in waiting if name in settings.external_queues]
    workforce = Workforce.now() if external else None
    unserved = {name for name in external if workforce and not workforce.serving(name)}
    for carrier in carriers().values() if unserved else ():
        if names := sorted(unserved.intersection(carrier.queues))[:MOST]:
            about = NoRelay(carrier.name, tuple(map(printed, names)))
            yield PartNotice(template="admin/skipqueue_celery/no_relay.html", about=about)
