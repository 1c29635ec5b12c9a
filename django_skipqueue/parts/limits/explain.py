"""Why a blocked job waits: the permits of its key, and the jobs before it. Queries read along the indexes of limits."""

from collections import Counter
from datetime import datetime

from django.db.models import F, QuerySet, Value
from django.db.models.lookups import LessThan
from django.utils.translation import gettext, ngettext

from ...console.arguments import redacted
from ...console.counts import Count
from ...models import Job, Status
from ...models.expressions import LIMIT_RANK, Row
from ...values.codec import shorten
from .states import KEY_LIMIT, holders_of, permits

MOST_HOLDERS = 1_000
"""Jobs with a permit that are looked at."""

MOST_NAMED = 5
"""Queues that are named."""


def why_it_is_blocked(job: Job, _now: datetime) -> str:
    """What a job that has a limit waits for; empty if it has none, still waits for other jobs, or has its permit."""
    if job.limit_key is None or job.awaits_jobs or job.has_permit:
        return ""
    values = {"key": shorten(redacted(job.task, job.args, job.kwargs).text(job.limit_key), KEY_LIMIT)}
    holders = holders_of(job.limit_key)
    if job.limit_kind == "fair":
        queued = Count.of(holders.filter(status=Status.QUEUED))
        return gettext(
            "It waits for its turn: %(queued)s jobs of the key “%(key)s” are queued, so that those of other keys are "
            "not kept waiting."
        ) % {**values, "queued": queued}
    if job.limit_kind != "concurrency":
        return _why_its_sequence_waits(holders[:1], values)
    capacity = permits(job.limit_key, job.capacity)
    if capacity is None:
        return gettext("It is to be admitted within a second or two: its queue has no limit.")
    count = Count.of(holders)
    before = _before(job)
    held = gettext("It waits for a permit of the key “%(key)s”: %(held)s of %(capacity)s are taken.") % {
        **values,
        "held": count,
        "capacity": capacity,
    }
    held = " ".join([held, *_who_only_waits(holders)])
    if not before.found:
        return held
    return f"{held} " + ngettext("%(number)s job comes before it.", "%(number)s jobs come before it.", before.found) % {
        "number": before
    }


def _who_only_waits(holders: "QuerySet[Job]") -> list[str]:
    """In which queues jobs hold permits that no worker has claimed; nothing if there are none."""
    names = Counter(holders.filter(status=Status.QUEUED).values_list("queue_name", flat=True)[:MOST_HOLDERS])
    queues = [
        gettext("%(number)s in “%(queue)s”") % {"number": number, "queue": name}
        for name, number in names.most_common(MOST_NAMED)
    ]
    return [gettext("Held by jobs that still wait for a worker: %(queues)s.") % {"queues": ", ".join(queues)}] * bool(
        names
    )


def _why_its_sequence_waits(holders: "QuerySet[Job]", values: dict[str, str]) -> str:
    for holder in holders:
        found = {**values, "id": holder.pk, "status": holder.get_status_display()}
        if holder.status == Status.FAILED:
            return (
                gettext("Its sequence “%(key)s” has halted: job %(id)s failed. Retry that job, or discard it.") % found
            )
        return gettext("It waits for job %(id)s of its sequence “%(key)s”, which is %(status)s.") % found
    return gettext("It is to be admitted by its sequence “%(key)s” within a second or two.") % values


def _before(job: Job) -> Count:
    """The number of blocked jobs that will be admitted first, up to the limit of a count. Index: limit_waiting."""
    rank = LessThan(Row(LIMIT_RANK, F("id")), Row(Value(-job.priority), Value(job.pk)))
    return Count.of(
        Job.objects.filter(rank, status="blocked", awaits_jobs=None, has_permit=None, limit_key=job.limit_key)
    )
