"""Cron monitors of Sentry: a check-in for each job of a schedule, updated by its attempts."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.text import slugify
from sentry_sdk.crons import capture_checkin

from ..events.tracing import attempted_job
from ..values.codec import decode
from ..values.records import ClaimedJob

KEY = "schedule"
"""The key in a job's metadata: `METADATA_KEY` of the part `schedules`."""

SLUG_LIMIT = 50
"""Characters that Sentry allows."""

CRON_FIELDS = 5
"""Sentry knows no seconds: a schedule with them has no monitor."""

UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))
"""In which Sentry measures intervals, in seconds."""

FINAL = {"completed": "ok", "failed": "error", "discarded": "error"}
"""The check-in for the status of a job that is finished. One that is retried stays in progress."""


@dataclass(frozen=True)
class CheckIn:
    """The check-in of one job. All its attempts have the same id, whichever process runs them."""

    slug: str
    id: str
    config: dict[str, Any]

    def send(self, status: Any) -> None:
        """Send it, with the times of the monitor: Sentry makes the monitor if there is none."""
        capture_checkin(monitor_slug=self.slug, check_in_id=self.id, status=status, monitor_config=self.config)  # type: ignore[arg-type]


def check_in_of(job: ClaimedJob) -> CheckIn | None:
    """The check-in of this job; `None` if it is of no schedule, or Sentry cannot know the times of that."""
    if f'"{KEY}"' not in job.metadata:
        return None
    note = decode(job.metadata).get(KEY)
    config = config_of(note) if isinstance(note, dict) else None
    if config is None:
        return None
    id = uuid.uuid5(uuid.NAMESPACE_OID, f"{attempted_job(job)} {note.get('planned_at')}").hex
    return CheckIn(slugify(str(note.get("name")).replace(".", "-"))[:SLUG_LIMIT], id, config)


def config_of(note: Mapping[str, Any]) -> dict[str, Any] | None:
    """When Sentry expects a check-in, by the rule in the job's metadata; `None` if it cannot know these times.

    The metadata may be the project's own, with anything in it.
    """
    cron, seconds = note.get("cron"), note.get("every")
    if isinstance(cron, str):
        if len(cron.split()) != CRON_FIELDS:
            return None
        return {"schedule": {"type": "crontab", "value": cron}, "timezone": note.get("timezone")}
    for unit, size in UNITS:
        if isinstance(seconds, int | float) and seconds >= size and seconds % size == 0:
            return {"schedule": {"type": "interval", "value": int(seconds // size), "unit": unit}}
    return None
