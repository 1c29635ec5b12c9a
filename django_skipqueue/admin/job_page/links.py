"""The links of a job and of its attempts to other systems, by the setting `LINKS`.

Invariant: a link has no value that is masked; a link that lacks a value is not shown.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ...conf import settings
from ...models import Job
from ...values.link_template import OF_AN_ATTEMPT, address, fields_of
from ...values.redaction import redact
from .attempts import Attempt


def links_of_job(job: Job, now: datetime) -> list[tuple[str, str]]:
    """Label and address of each link; a job that is not finished has `now` for its end."""
    values = {
        **_values_of_all(job),
        "worker": job.worker_name,
        "attempt": job.attempts,
        **_times("started_at", job.started_at),
        **_times("finished_at", job.finished_at or now),
    }
    return list(_links(job, values, of_attempt=False))


def links_of_attempt(job: Job, attempt: Attempt, now: datetime) -> list[tuple[str, str]]:
    """Label and address of each link whose address names the attempt's event in Sentry."""
    values = {
        **_values_of_all(job),
        OF_AN_ATTEMPT: attempt.sentry_event_id,
        "worker": attempt.worker,
        "attempt": attempt.number,
        **_times("started_at", attempt.started_at),
        **_times("finished_at", attempt.ended_at or now),
    }
    return list(_links(job, values, of_attempt=True))


def _links(job: Job, values: Mapping[str, Any], *, of_attempt: bool) -> Iterator[tuple[str, str]]:
    for label, template in settings.links.items():
        if (OF_AN_ATTEMPT in fields_of(template)) == of_attempt:
            link = address(template, values, _shown(job.metadata))
            if link is not None:
                yield label, link


def _values_of_all(job: Job) -> dict[str, Any]:
    return {"job_id": job.pk, "task": job.task, "queue_name": job.queue_name, **_times("enqueued_at", job.enqueued_at)}


def _times(name: str, moment: datetime | None) -> dict[str, Any]:
    if moment is None:
        return {}
    return {name: moment.isoformat(), f"{name}_ms": round(moment.timestamp() * 1000)}


def _shown(metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, dict):
        return {}
    masked = redact(kwargs=metadata, also=settings.redact).kwargs
    return {key: value for key, value in metadata.items() if masked[key] == value}
