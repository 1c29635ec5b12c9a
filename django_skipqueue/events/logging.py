"""A JSON formatter, and a filter that adds the current job to each record, for the project's setting `LOGGING`.

`runworker` uses both by default, if the project configures no handler.
"""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from . import log_context

STANDARD = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"))
"""The attributes that every log record has. Other attributes come from `extra`, or from a filter."""

OWN_FIELDS = frozenset(("time", "level", "logger", "message", "exception", "stack"))
"""The fields that the formatter itself writes. An attribute of the record with such a name is left out."""


class JobContextFilter(logging.Filter):
    """Adds to each record the job and the worker of the attempt that writes it. Outside of attempts both are `None`.

    Sets job_id, task, queue_name, attempt, worker_id and worker_name; and database, if several databases hold queues.
    Attributes that the record already has stay as they are, because the queue's own log lines name the job that they
    are about. Add this filter to handlers, because the filters of a logger see only records written to that logger
    itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with its attributes set."""
        job = log_context.job.get()
        worker: dict[str, Any] = log_context.worker if job else dict.fromkeys(log_context.worker)
        attributes = {
            "job_id": job and job.id,
            "task": job and job.task,
            "queue_name": job and job.queue_name,
            "attempt": job and job.attempt,
            **worker,
            **(log_context.named_database() if job else {}),
        }
        record.__dict__.update(attributes | record.__dict__)
        return True


class JsonFormatter(logging.Formatter):
    """Writes each record as a JSON object in one line.

    The object has time (RFC 3339, UTC), level, logger and message; then all attributes given as `extra`, except
    attributes that are `None`; then the exception with type, message and stack. Values that JSON cannot represent
    become strings. The formatter never raises.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return "{" + ", ".join(f"{_as_json(name)}: {_as_json(value)}" for name, value in self._values(record)) + "}"

    def _values(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        yield "time", moment.replace("+00:00", "Z")
        yield "level", record.levelname
        yield "logger", record.name
        yield "message", _message(record)
        for name, value in record.__dict__.items():
            if name not in STANDARD and name not in OWN_FIELDS and value is not None:
                yield name, value
        if record.exc_info and record.exc_info[1]:
            yield "exception", self._exception(record, record.exc_info[1])
        if record.stack_info:
            yield "stack", record.stack_info

    def _exception(self, record: logging.LogRecord, error: BaseException) -> dict[str, str]:
        error_class = type(error)
        # A record of the queue has the stack as a text, in which secret arguments are masked.
        stack = record.exc_text or self.formatException((error_class, error, error.__traceback__))
        return {
            "type": f"{error_class.__module__}.{error_class.__qualname__}",
            "message": _as_text(error),
            "stack": stack.rstrip(),
        }


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit the message, or their `__str__` raises
        return f"{_as_text(record.msg)} {_as_text(record.args)}"


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, default=_as_text, allow_nan=False)
    except Exception:  # keys that are not strings, circular references, NaN, or too many levels
        return json.dumps(_as_text(value))


def _as_text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
