"""The Python code that enqueues the same job again.

Invariant: the code has `...` in place of every secret. `.defer()` refuses that value, so no job lacks a secret.
"""

import json
from collections.abc import Iterator
from keyword import iskeyword
from typing import Any

from ...conf import settings
from ...exceptions import UnknownTask
from ...models import Job
from ...tasks.registry import registry
from ...tasks.task import Task
from ...values.redaction import Redacted

LIMIT = 20_000
"""Characters. Longer code is not shown."""

SECRET = "..."  # noqa: S105 (what stands for one)


def defer_call(job: Job, call: Redacted) -> str:
    """An import, and a call of `.defer()`; empty if the task is not registered here, or there is no such code.

    For a task of `django.tasks` it is a call of `.enqueue()`.

    `call`: the arguments of the job with their secrets masked.
    """
    try:
        task = registry.get(job.task)
    except UnknownTask:
        return ""
    if not isinstance(job.args, list) or not isinstance(job.kwargs, dict):
        return ""
    if task.alias is None:
        method, options = "defer", ", ".join(_options(job, task, call))
    else:
        method, options = "enqueue", ", ".join(_djangos_options(job, task))
    using = f".using({options})" if options else ""
    arguments = ", ".join(_arguments(job, call))
    code = f"from {task.__module__} import {task.__name__}\n\n{task.__name__}{using}.{method}({arguments})"
    return code if len(code) <= LIMIT else ""


def _options(job: Job, task: Task[Any, Any], call: Redacted) -> Iterator[str]:
    """The options in which the job differs from others of its task, except for its due time."""
    own = task.options
    for name, default in (
        ("queue_name", own.queue_name),
        ("priority", own.priority),
        ("max_attempts", own.max_attempts or settings.max_attempts),
        ("timeout", None),
    ):
        value = getattr(job, name)
        if value != default:
            yield f"{name}={_literal(value, value)}"
    key = job.unique_key
    if key is not None and not own.makes_key and key != own.unique_key:
        yield f"unique_key={_literal(key, key) if call.text(key) == key else SECRET}"


def _djangos_options(job: Job, task: Task[Any, Any]) -> Iterator[str]:
    """The options in which a job of `django.tasks` differs from others of its task: its `.using()` takes fewer."""
    own = {"queue_name": task.options.queue_name, "priority": task.options.priority, "backend": task.alias}
    given = {name: getattr(job, name) for name in ("queue_name", "priority")}
    metadata = job.metadata if isinstance(job.metadata, dict) else {}
    given["backend"] = metadata.get("backend", task.alias)
    for name, value in given.items():
        if value != own[name]:
            yield f"{name}={_literal(value, value)}"


def _arguments(job: Job, call: Redacted) -> Iterator[str]:
    for shown, value in zip(call.args, job.args, strict=True):
        yield _literal(shown, value)
    for name, value in job.kwargs.items():
        literal = _literal(call.kwargs[name], value)
        is_name = name.isidentifier() and not iskeyword(name)
        yield f"{name}={literal}" if is_name else f"**{{{_literal(name, name)}: {literal}}}"


def _literal(shown: Any, value: Any) -> str:
    """The value as Python writes it. Where it is `shown` otherwise, it is a secret."""
    if isinstance(value, dict) and isinstance(shown, dict):
        return f"{{{', '.join(f'{_literal(key, key)}: {_literal(shown[key], item)}' for key, item in value.items())}}}"
    if isinstance(value, list) and isinstance(shown, list):
        return f"[{', '.join(map(_literal, shown, value))}]"
    if shown != value:
        return SECRET
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
