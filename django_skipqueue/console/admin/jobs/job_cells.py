"""The cells of the job list.

They are short, and safe for any content of a job. The list only reads the beginning of the arguments' JSON text, and
repairs the cut text. A name that was read in full stays with the part of its value that was read, so that secrets are
masked.
"""

import json
import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Now
from django.template.defaultfilters import date
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext

from ....models import FINISHED, Job, Status
from ....values.redaction import Redacted
from ...arguments import redacted
from ...durations import distance, held_since, roughly, span
from ...job_states import RETRYING, state_of
from ...parts import holder_of
from ..ui.cells import CELL_LIMIT, shortened, worker_link

JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*"?|[][{},:]|[^][{},:"\s]+')
UNFINISHED_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
CLOSERS = {"{": "}", "[": "]"}
ENDINGS = ("", '"…"', ':"…"', '…"', '…":"…"')
"""Texts that may complete a cut JSON text, before its closing brackets. The cut may be in a name or a value."""


def decoded(text: str) -> Any:
    """Decode a JSON text that may have been cut off. `…` marks the cut. Return `None` if the text is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    tokens = JSON_TOKEN.findall(UNFINISHED_ESCAPE.sub(r"\1", text))
    brackets: list[str] = []
    for token in tokens:
        if token in CLOSERS:
            brackets.append(CLOSERS[token])
        elif token in ("}", "]") and brackets:
            brackets.pop()
    if tokens and tokens[-1] == ",":
        tokens.pop()
    elif tokens and tokens[-1][0] not in '"[]{}:':  # some digits of a number may be missing
        tokens[-1] = '"…"'
    beginning, closing_brackets = "".join(tokens), "".join(reversed(brackets))
    for ending in ENDINGS:
        with suppress(ValueError, RecursionError):
            return json.loads(f"{beginning}{ending}{closing_brackets}")
    return None


def with_cells(jobs: Any) -> Any:
    """Query only the columns that the list shows, and only as much of the arguments as fits into a cell."""
    args_text, kwargs_text = (Left(Cast(name, TextField()), CELL_LIMIT * 4) for name in ("args", "kwargs"))
    slim_jobs = jobs.defer("args", "kwargs", "result", "errors", "metadata", "logs")
    return slim_jobs.annotate(now=Now(), args_text=args_text, kwargs_text=kwargs_text)


def called(task: str, args: str, kwargs: str) -> Redacted:
    """Return the arguments with their secrets masked. The JSON texts may have been cut off."""
    positional, named = decoded(args), decoded(kwargs)
    return redacted(task, positional if isinstance(positional, list) else [], named if isinstance(named, dict) else {})


def when(job: Job, now: datetime) -> SafeString:
    """Show how long a job has run or waited, when it finished or is due, and the worker that runs it.

    If the job was handed to a carrier (another system that runs jobs), only show since when the carrier has the job,
    because the job may still wait there.
    """
    text, moment = _text_and_moment(job, now)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>{}',
        moment.isoformat(),
        date(localtime(moment) if is_aware(moment) else moment, "DATETIME_FORMAT"),
        text,
        format_html('<span class="skipqueue-detail">{}</span>', worker_link(job.locked_by))
        if job.status == Status.RUNNING and job.worker_name and not holder_of(job)
        else "",
    ) + _progress_bar(job)


def _progress_bar(job: Job) -> SafeString:
    progress = job.current_progress if job.status == Status.RUNNING else None
    if progress is None:
        return SafeString("")
    return format_html(
        '<progress class="skipqueue-progress" max="1" value="{}" aria-label="{}"></progress>'
        '<span class="skipqueue-detail">{}</span>',
        f"{progress.value:.4f}",
        gettext("Progress"),
        shortened(progress.line),
    )


def _text_and_moment(job: Job, now: datetime) -> tuple[str, datetime]:
    if job.finished_at and job.status in FINISHED:
        return distance(job.finished_at, now), job.finished_at
    if job.status == Status.RUNNING:
        started = job.started_at or job.locked_at or job.run_after
        holder = holder_of(job)
        running_time = gettext("for %(span)s") % {"span": span(max(now - started, timedelta(0)))}
        return held_since(shortened(holder), started, now) if holder else running_time, started
    if job.run_after > now:
        if state_of(job) == RETRYING:
            return gettext("next in %(span)s") % {"span": roughly(job.run_after - now)}, job.run_after
        return distance(job.run_after, now), job.run_after
    if job.status == Status.QUEUED:
        return gettext("waiting %(span)s") % {"span": roughly(now - job.run_after)}, job.run_after
    return gettext("due %(span)s ago") % {"span": roughly(now - job.run_after)}, job.run_after
