"""Moves the waiting tasks of django-tasks-db into the job queue.

Each job is inserted and its old row deleted in the same transaction. Rows that a worker of django-tasks-db has locked
are skipped. If the two tables are in different databases, the jobs are committed first. After a crash between the two
commits, both the rows and the jobs exist, and the next run imports the batch a second time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections, models, transaction

from ...jobs.placement import placement, shard_of
from ...jobs.registry import registry
from ...jobs.task import call_columns
from ...queue.store import Store
from ...values.records import EncodedCall
from .backend import SkipQueueBackend
from .definition import DjangoTask, options_of
from .framework import task_backends
from .mapping import call, parsed_options, spec, variant

IMPORT_BATCH = 1_000

NO_RUN_AFTER_YEAR = 9999
"""The year that django-tasks-db writes for a task without `run_after`."""

Group = tuple[str, str, int, datetime | None]
"""Task, queue, priority and `run_after`. Rows with the same four values are enqueued in one statement."""


def import_tasks(backend_alias: str, source: str, *, dry_run: bool) -> tuple[str, str]:
    """Move the waiting rows, or with `dry_run` only count them.

    Moves them in batches, each in its own transaction, so that the command may be stopped at any time and run again.

    Returns two texts for the output: how many tasks were moved, and how many stay in the old table.
    """
    backend = _backend(backend_alias)
    if source not in connections:
        raise CommandError(f"--source: there is no database {source!r} in DATABASES.")
    known_tasks = {task.name: task for task in registry if isinstance(task, DjangoTask)}
    waiting_rows = source_model()._default_manager.using(source).filter(status="READY")
    importable_rows, unknown_rows = (
        waiting_rows.filter(task_path__in=known_tasks),
        waiting_rows.exclude(task_path__in=known_tasks),
    )
    moved_counts = _count_by_task(importable_rows) if dry_run else Counter[str]()
    while not dry_run and (batch_counts := _move_batch(importable_rows, known_tasks, backend)):
        moved_counts += batch_counts
    remaining_counts = _count_by_task(unknown_rows)
    return _summary(moved_counts), _summary(remaining_counts) if remaining_counts else ""


def source_model() -> type[models.Model]:
    try:
        return apps.get_app_config("django_tasks_database").get_model("DBTaskResult")
    except LookupError:
        raise CommandError(
            "Keep 'django_tasks_db' in INSTALLED_APPS until its waiting tasks are moved: its model reads the old table."
        ) from None


def _backend(alias: str) -> SkipQueueBackend:
    if alias not in task_backends.settings:
        raise CommandError(f"--backend: there is no {alias!r} in TASKS.")
    backend = task_backends[alias]
    if not isinstance(backend, SkipQueueBackend):
        raise CommandError(f"First set TASKS[{alias!r}]['BACKEND'] to 'django_skipqueue.backend.SkipQueueBackend'.")
    return backend


def _move_batch(
    waiting_rows: models.QuerySet[Any], known_tasks: Mapping[str, DjangoTask], backend: SkipQueueBackend
) -> Counter[str]:
    backend_options = parsed_options(backend.options)
    skip_locked = connections[waiting_rows.db].features.has_select_for_update_skip_locked
    with transaction.atomic(using=waiting_rows.db), ExitStack() as transactions:
        rows = list(
            waiting_rows.select_for_update(skip_locked=skip_locked).order_by("enqueued_at", "pk")[:IMPORT_BATCH]
        )
        for (name, queue_name, priority, run_after), calls in _grouped(rows, known_tasks).items():
            task = variant(known_tasks[name].definition, queue_name=queue_name, priority=priority, run_after=run_after)
            job_spec = spec(task, options_of(task), backend_options, alias=backend.alias)._replace(on_conflict="skip")
            shards = [shard_of(known_tasks[name], encoded_call) for encoded_call in calls]
            aliases = placement().choose_many(job_spec, calls, named=backend_options.database, shards=shards)
            for alias in dict.fromkeys(aliases):  # each database once
                transactions.enter_context(transaction.atomic(using=alias))
                calls_here = [
                    encoded_call
                    for encoded_call, chosen_alias in zip(calls, aliases, strict=True)
                    if chosen_alias == alias
                ]
                Store(alias).enqueue_many(job_spec, calls_here)
        waiting_rows.model._default_manager.using(waiting_rows.db).filter(pk__in=[row.pk for row in rows]).delete()
    return Counter(row.task_path for row in rows)


def _grouped(rows: list[Any], known_tasks: Mapping[str, DjangoTask]) -> dict[Group, list[EncodedCall]]:
    groups: defaultdict[Group, list[EncodedCall]] = defaultdict(list)
    for row in rows:
        run_after = None if row.run_after is None or row.run_after.year == NO_RUN_AFTER_YEAR else row.run_after
        args, kwargs = row.args_kwargs["args"], row.args_kwargs["kwargs"]
        columns = call_columns(known_tasks[row.task_path], args, kwargs)
        groups[row.task_path, row.queue_name, row.priority, run_after].append(call(args, kwargs, columns))
    return groups


def _count_by_task(rows: models.QuerySet[Any]) -> Counter[str]:
    paths = rows.order_by().values_list("task_path")
    return Counter(dict(paths.annotate(models.Count("pk"))))


def _summary(counts: Counter[str]) -> str:
    by_name = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{counts.total():,} tasks ({by_name})" if by_name else "0 tasks"
