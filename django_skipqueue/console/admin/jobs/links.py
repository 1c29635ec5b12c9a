"""Links from a job and its attempts to other systems (setting `LINKS`), and code that enqueues the job again.

A link never contains a secret. A link is not shown if one of its values is missing. In the Python code that enqueues a
job again, `...` replaces every secret. `.defer()` refuses `...`, so nobody enqueues a job without its secrets by
mistake.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from keyword import iskeyword
from typing import Any

from ....conf import settings
from ....exceptions import UnknownTask
from ....jobs.registry import registry
from ....jobs.task import Task
from ....models import Job
from ....models.copies import call_of
from ....values.link_template import OF_AN_ATTEMPT, address, fields_of
from ....values.redaction import Redacted, redact
from .attempts import ShownAttempt


def links_of_job(job: Job, now: datetime) -> list[tuple[str, str]]:
    """Return the label and URL of each link. `now` stands for the end time of an unfinished job."""
    values = {"worker": job.worker_name, "attempt": job.attempts, **_time_values("started_at", job.started_at)}
    return _links(job, values | _time_values("finished_at", job.finished_at or now), of_attempt=False)


def links_of_attempt(job: Job, attempt: ShownAttempt, now: datetime) -> list[tuple[str, str]]:
    """Return the label and URL of each link that contains the attempt's Sentry event."""
    values = {"worker": attempt.worker, "attempt": attempt.number, **_time_values("started_at", attempt.started_at)}
    values |= {OF_AN_ATTEMPT: attempt.sentry_event_id, **_time_values("finished_at", attempt.ended_at or now)}
    return _links(job, values, of_attempt=True)


def _links(job: Job, more_values: Mapping[str, Any], *, of_attempt: bool) -> list[tuple[str, str]]:
    common_values = {"job_id": job.pk, "task": job.task, "queue_name": job.queue_name}
    values = {**common_values, **_time_values("enqueued_at", job.enqueued_at), **more_values}
    metadata = job.metadata if isinstance(job.metadata, dict) else {}
    masked_metadata = redact(kwargs=metadata, also=settings.redact).kwargs
    public_metadata = {key: value for key, value in metadata.items() if masked_metadata[key] == value}
    links = (
        (label, address(template, values, public_metadata))
        for label, template in settings.links.items()
        if (OF_AN_ATTEMPT in fields_of(template)) == of_attempt
    )
    return [(label, link) for label, link in links if link is not None]


def _time_values(name: str, moment: datetime | None) -> dict[str, Any]:
    if moment is None:
        return {}
    return {name: moment.isoformat(), f"{name}_ms": round(moment.timestamp() * 1000)}


DEFER_CALL_LIMIT = 20_000
"""Code with more characters than this is not shown."""

SECRET = "..."  # noqa: S105 (a placeholder, not a secret)


def defer_call(job: Job, masked_call: Redacted) -> str:
    """Return Python code that enqueues the job again: an import, and a call of `.defer()`.

    For a `django.tasks` task, the code calls `.enqueue()`. Return an empty text if the task is unknown in this process,
    or the code would be too long. `masked_call`: the job's arguments with their secrets masked.
    """
    try:
        task = registry.get(job.task)
    except UnknownTask:
        return ""
    if not isinstance(job.args, list) or not isinstance(job.kwargs, dict):
        return ""
    method, options = "defer" if task.alias is None else "enqueue", ", ".join(_changed_options(job, task, masked_call))
    using = f".using({options})" if options else ""
    arguments = ", ".join(_arguments(job, masked_call))
    code = f"from {task.__module__} import {task.__name__}\n\n{task.__name__}{using}.{method}({arguments})"
    return code if len(code) <= DEFER_CALL_LIMIT else ""


def _changed_options(job: Job, task: Task[Any, Any], masked_call: Redacted) -> Iterator[str]:
    """Yield the options that differ from the task's defaults, except for the due time."""
    task_options = task.options
    defaults: dict[str, Any] = {"queue_name": task_options.queue_name, "priority": task_options.priority}
    if task.alias is None:
        defaults |= {"max_attempts": task_options.max_attempts or settings.max_attempts, "timeout": None}
    values = {name: getattr(job, name) for name in defaults}
    if task.alias is not None:  # a `django.tasks` task, whose `.using()` accepts fewer options
        metadata = job.metadata if isinstance(job.metadata, dict) else {}
        defaults["backend"], values["backend"] = task.alias, metadata.get("backend", task.alias)
    yield from (f"{name}={_literal(value, value)}" for name, value in values.items() if value != defaults[name])
    unique_key = call_of(job, "", "").unique_key  # only the key is needed, so without the arguments' JSON
    if (
        task.alias is None
        and unique_key is not None
        and not task_options.makes_key
        and unique_key != task_options.fixed_key
    ):
        yield f"unique_key={_literal(unique_key, unique_key) if masked_call.text(unique_key) == unique_key else SECRET}"


def _arguments(job: Job, masked_call: Redacted) -> Iterator[str]:
    for masked_value, value in zip(masked_call.args, job.args, strict=True):
        yield _literal(masked_value, value)
    for name, value in job.kwargs.items():
        literal = _literal(masked_call.kwargs[name], value)
        is_name = name.isidentifier() and not iskeyword(name)
        yield f"{name}={literal}" if is_name else f"**{{{_literal(name, name)}: {literal}}}"


def _literal(masked_value: Any, value: Any) -> str:
    """Return the value as Python code. Where `masked_value` differs from the value, the value is secret."""
    if isinstance(value, dict) and isinstance(masked_value, dict):
        items = (f"{_literal(key, key)}: {_literal(masked_value[key], item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list) and isinstance(masked_value, list):
        return f"[{', '.join(map(_literal, masked_value, value))}]"
    if masked_value != value:
        return SECRET
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
