"""Carriers in words, for the admin and the command line."""

from datetime import datetime
from typing import Any

from django.utils.translation import gettext, ngettext

from ...console.counts import grouped
from ...console.durations import clock_time
from ...console.parts import PartStatus
from ...console.waiting import LINE_LIMIT, place_in_queue
from ...console.worker_health import Workforce
from ...events.log_format import in_words
from ...models import Job, Status
from ...queue.store import Store
from ...values.codec import shorten
from .carrier import carrier_of
from .conf import carrier_for
from .states import CarrierNow, carriers_now, has_relay


def carrier_with(job: Job) -> str:
    """The name of the carrier that has this running job; empty: a worker or a relay has it, or nobody."""
    return carrier_of(job.locked_by) if job.status == Status.RUNNING else ""


def broker_in_words(carrier: CarrierNow) -> str:
    if carrier.is_reachable is None:
        return gettext("no relay is alive")
    return gettext("broker reachable") if carrier.is_reachable else gettext("broker not reachable")


def relays_in_words(number: int) -> str:
    return ngettext("%(number)s relay", "%(number)s relays", number) % {"number": grouped(number)}


def why_it_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    """What a queued job of a carrier waits for, and where one is that the carrier has; else an empty string."""
    if job.status == Status.QUEUED and (carrier := carrier_for(job.queue_name)):
        if not workforce.serving(job.queue_name):
            return gettext("It waits for a relay: none of %(carrier)s is alive.") % {"carrier": carrier.name}
        text = gettext("It is the next job of the queue “%(queue)s”: it goes to %(carrier)s once there is room.")
        return place_in_queue(job, text % {"queue": "%(queue)s", "carrier": carrier.name})
    name = carrier_with(job)
    if not name or job.locked_at is None:
        return ""
    values = {"carrier": shorten(name, LINE_LIMIT), "time": clock_time(job.locked_at, now)}
    if not has_relay(name, workforce):
        return (
            gettext(
                "It has been with %(carrier)s since %(time)s. No relay is alive: its outcome is written once one is."
            )
            % values
        )
    return gettext("It has been with %(carrier)s since %(time)s: it waits there, or runs.") % values


def status(store: Store) -> PartStatus:
    found = carriers_now(store)
    return PartStatus(lines=list(map(_line, found)), as_json={"carriers": list(map(_as_json, found))})


def _line(carrier: CarrierNow) -> str:
    oldest = "" if carrier.oldest_seconds is None else f", the first for {in_words(carrier.oldest_seconds)}"
    relays = f"{carrier.relays} relay{'' if carrier.relays == 1 else 's'}, " if carrier.relays else ""
    refused = f", {carrier.refused:,} refused" if carrier.refused else ""
    held = f"{carrier.held:,} of {carrier.window:,} jobs with it{oldest}"
    return f"Carrier {carrier.name}: {held}; {relays}{broker_in_words(carrier)}{refused}."


def _as_json(carrier: CarrierNow) -> dict[str, Any]:
    return {
        "carrier": carrier.name,
        "queues": carrier.queues,
        "held": carrier.held,
        "window": carrier.window,
        "oldest_at": carrier.oldest,
        "oldest_seconds": carrier.oldest_seconds,
        "relays": carrier.relays,
        "is_reachable": carrier.is_reachable,
        "heartbeat_age_seconds": carrier.heartbeat_age,
        "refused": carrier.refused,
    }
