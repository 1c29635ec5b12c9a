"""Everything that the contract tests read from private modules of the package.

No other file of this folder imports a private module: if the package is restructured, only this file changes.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from inspect import isfunction
from typing import Any

from django_skipqueue.conf import APP_SETTINGS, Settings
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.metrics import scrape
from django_skipqueue.contrib.celery import logs as carried_logs
from django_skipqueue.contrib.celery import logs as relay_logs
from django_skipqueue.contrib.celery.settings import CarrierSettings
from django_skipqueue.events import events, liveness_logs, log_context, logs, sinks
from django_skipqueue.events import logs as queue_logs
from django_skipqueue.integrations.django_tasks.mapping import BackendOptions
from django_skipqueue.jobs.registry import Registry, registry
from django_skipqueue.parts.batches.values import BatchProgress, FinishedBatch
from django_skipqueue.parts.databases.choose import CallToPlace
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.health import figures
from django_skipqueue.values.backoff import RetryPolicy
from django_skipqueue.values.notes import Progress
from django_skipqueue.values.outcomes import Outcome, Settlement
from django_skipqueue.values.records import Attempt, ClaimedJob, DeferredJobs, Dependant, RecoveredJob

from .public import Members
from .source import is_ours

CLASSES_OF_PARTS: tuple[type, ...] = (
    BatchProgress,
    CallToPlace,
    FinishedBatch,
)
"""Classes of parts whose members are all public."""

ELSEWHERE: dict[type, Members] = {
    **dict.fromkeys(CLASSES_OF_PARTS),
    Attempt: "job outcome started ended worker is_written database duration_ms wait_ms",
    ClaimedJob: "id lease task queue_name args kwargs attempt max_attempts priority run_after locked_at metadata "
    "timeout unknown_since wait_ms waited_ms",
    DeferredJobs: "outcomes created existing replaced databases handles",
    Dependant: None,
    Outcome: "status delay refund result last_error error is_unknown exception",
    Progress: None,
    RecoveredJob: "id task queue_name attempt status locked_by locked_at metadata",
    Registry: "get is_async __iter__",
    RetryPolicy: "backoff retry_on discard_on",
    Settlement: "job_id lease outcome started ended",
    Store: "default admit next_due recover prune prune_lag queues_with_jobs",
}
"""Classes in private modules that the reference describes, with their public members; `None` means all members."""


def objects() -> Iterator[str]:
    """Yield the objects whose names users see: the registry, and the package's own tasks."""
    yield f"registry: {type(registry).__name__}"
    yield from (f"the task {task.name}" for task in registry if is_ours(task.name))


def defaults(dataclass: Any) -> dict[str, str]:
    """The default of each field of a dataclass."""
    return {
        field.name: "required"
        if field.default is field.default_factory is MISSING
        else f"default {field.default if field.default_factory is MISSING else field.default_factory()!r}"
        for field in fields(dataclass)
    }


SETTINGS = {name.upper(): default for name, default in defaults(Settings).items() if name != "of_apps"}
SETTINGS |= {key.upper(): f"default {setting.made_from({})!r}" for key, setting in APP_SETTINGS.items()}
CARRIER_OPTIONS = {name.upper(): default for name, default in defaults(CarrierSettings).items() if name != "name"}
BACKEND_OPTIONS = defaults(BackendOptions)

EXIT_CODES = {code.name: code.value for code in Exit}


# Metrics, events, log lines


def metrics() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield the name, kind, labels and help of each metric of the queue and of a `runworker`."""
    for metric in (*scrape.metrics(), *(family.metric for family in figures([], names_databases=False))):
        yield metric.name, metric.kind, metric.labels, metric.text


def event_classes(base_class: type[events.Event] = events.Event) -> Iterator[type[events.Event]]:
    """Yield the event classes of the package, without their base classes."""
    subclasses = [subclass for subclass in base_class.__subclasses__() if is_ours(subclass.__module__)]
    yield from (event for subclass in subclasses for event in event_classes(subclass)) if subclasses else [base_class]


send: Callable[[Any], None] = sinks.send
"""Writes an event to the log, and sends it to the receivers of signals."""

WORKER_OF_PROCESS = log_context.worker
"""The id and the name of the worker that all log records of this process have."""

CHOICES = {
    **dict.fromkeys(("AlertRaised.rule", "AlertOver.rule"), ("oldest_waiting", "failed_share", "recoveries")),
    "RecoveredJob.status": ("failed", "queued"),
    "ScheduleSkipped.reason": ("job", "late"),
}
"""Values that select different log lines, by class and field."""


PART_LOGS = r"django_skipqueue\.parts\.(\w+\.events|archive\.move)"
"""Matches the names of modules that write the log lines of parts (optional features of the package)."""


def line_writers() -> Iterator[Callable[..., None]]:
    """Yield the functions that write log lines about things that are not events."""
    modules_of_parts = [module for name, module in sys.modules.items() if re.fullmatch(PART_LOGS, name)]
    for module in dict.fromkeys([carried_logs, liveness_logs, logs, queue_logs, relay_logs, *modules_of_parts]):
        functions = [
            value for value in vars(module).values() if isfunction(value) and value.__module__ == module.__name__
        ]
        writers = [function for function in functions if function.__annotations__["return"] is None]
        yield from (writer for writer in writers if not writer.__name__.startswith(("_", "write")))
