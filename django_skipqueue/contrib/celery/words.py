"""Carriers in words, for the admin and the command line."""

from datetime import datetime

from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from ...models import Job, Status
from .carrier import carrier_of
from .states import CarrierNow


def carrier_with(job: Job) -> str:
    """The name of the carrier that has this running job; empty: a worker or a relay has it, or nobody."""
    return carrier_of(job.locked_by) if job.status == Status.RUNNING else ""


def with_carrier(name: str, since: datetime, now: datetime) -> str:
    """A running job's place in words: `with celery since 14:02:11`."""
    return gettext("with %(carrier)s since %(time)s") % {"carrier": name, "time": clock_time(since, now)}


def clock_time(moment: datetime, now: datetime) -> str:
    """A time to the second, in the current time zone; with its date unless that is today's."""
    here, today = localtime(moment), localtime(now).date()
    return date_format(here, "H:i:s" if here.date() == today else "Y-m-d H:i:s")


def broker_in_words(carrier: CarrierNow) -> str:
    if carrier.is_reachable is None:
        return gettext("no relay is alive")
    return gettext("broker reachable") if carrier.is_reachable else gettext("broker not reachable")
