"""What stands in the cells of the job list: short, and safe whatever the job carries."""

import json
from datetime import datetime
from typing import Any

from django.template.defaultfilters import date
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext

from ..models import FINISHED, Job, Status
from ..redaction import Redacted
from . import cut_json
from .durations import distance
from .parameters import redacted
from .states import STATES

CELL_LIMIT = 120
"""Characters of anything that stands in a cell."""


def badge(state: str) -> SafeString:
    """The state as a word and a colour."""
    return format_html('<span class="skipqueue-badge" data-status="{}">{}</span>', state, STATES[state])


def task(job: Job) -> SafeString:
    """The function's name first, for that is what people look for; the module and the id below it."""
    module, _, function = job.task.rpartition(".")
    return format_html(
        '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">#{}{}</span>',
        shortened(function or job.task),
        job.pk,
        f" · {shortened(module)}" if module and function else "",
    )


def call_and_error(job: Any) -> SafeString:
    """The arguments, and below them the first line of the last error, unless the job has succeeded since."""
    call = called(job.task, job.args_text, job.kwargs_text)
    error = "" if job.status == Status.COMPLETED else call.text(job.last_error).strip().partition("\n")[0]
    return format_html(
        '<span class="skipqueue-call">{}</span>{}',
        arguments(call),
        format_html('<span class="skipqueue-error">{}</span>', shortened(error)) if error else "",
    )


def called(task: str, args: str, kwargs: str) -> Redacted:
    """The arguments with their secrets masked, from JSON texts that may be cut off."""
    positional, named = cut_json.decoded(args), cut_json.decoded(kwargs)
    return redacted(task, positional if isinstance(positional, list) else [], named if isinstance(named, dict) else {})


def arguments(call: Redacted) -> str:
    """As in a call: `42, email="x"`."""
    shown = [_dumped(value) for value in call.args]
    shown += [f"{name}={_dumped(value)}" for name, value in call.kwargs.items()]
    return shortened(", ".join(shown))


def shortened(text: str) -> str:
    """As much as fits into a cell."""
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def when(job: Job, now: datetime) -> SafeString:
    """What the job last did, or does next, and how far from now that is."""
    what, moment = _event(job)
    return format_html(
        '<span class="skipqueue-what">{}</span> <time datetime="{}" title="{}">{}</time>',
        what,
        moment.isoformat(),
        date(localtime(moment) if is_aware(moment) else moment, "DATETIME_FORMAT"),
        distance(moment, now),
    )


def _event(job: Job) -> tuple[str, datetime]:
    if job.status in FINISHED and job.finished_at:
        return gettext("finished"), job.finished_at
    if job.status == Status.RUNNING and job.started_at:
        return gettext("started"), job.started_at
    return gettext("due"), job.run_after


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
