"""Moves the waiting tasks of django-tasks-db into the job queue.

Invariant: a row leaves the old table in the transaction in which its job appears, and rows that a worker of
django-tasks-db has locked are skipped. If the tables are in different databases, the jobs are committed first: after a
crash between the commits, both rows and jobs exist, and the next run imports the batch a second time.
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
"""The values shared by rows that are enqueued in one statement: task, queue, priority and `run_after`."""


def import_tasks(backend_alias: str, source: str, *, dry_run: bool) -> tuple[str, str]:
    """Move the rows, or only count them. Returns texts about the tasks that were moved, and about tasks that are left.

    Moves the rows in batches, each in a transaction of its own, so that the move may be stopped at any time and
    repeated.
    """
    backend = _backend(backend_alias)
    if source not in connections:
        raise CommandError(f"--source: there is no database {source!r} in DATABASES.")
    known = {task.name: task for task in registry if isinstance(task, DjangoTask)}
    waiting = source_model()._default_manager.using(source).filter(status="READY")
    movable, unknown = waiting.filter(task_path__in=known), waiting.exclude(task_path__in=known)
    moved = _counted(movable) if dry_run else Counter[str]()
    while not dry_run and (batch := _move(movable, known, backend)):
        moved += batch
    left = _counted(unknown)
    return _summary(moved), _summary(left) if left else ""


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


def _move(waiting: models.QuerySet[Any], known: Mapping[str, DjangoTask], backend: SkipQueueBackend) -> Counter[str]:
    given = parsed_options(backend.options)
    skip_locked = connections[waiting.db].features.has_select_for_update_skip_locked
    with transaction.atomic(using=waiting.db), ExitStack() as transactions:
        rows = list(waiting.select_for_update(skip_locked=skip_locked).order_by("enqueued_at", "pk")[:IMPORT_BATCH])
        for (name, queue_name, priority, run_after), calls in _grouped(rows, known).items():
            task = variant(known[name].definition, queue_name=queue_name, priority=priority, run_after=run_after)
            wanted = spec(task, options_of(task), given, alias=backend.alias)._replace(on_conflict="skip")
            shards = [shard_of(known[name], c) for c in calls]
            chosen = placement().choose_many(wanted, calls, named=given.database, shards=shards)
            for alias in dict.fromkeys(chosen):
                transactions.enter_context(transaction.atomic(using=alias))
                Store(alias).enqueue_many(wanted, [c for c, at in zip(calls, chosen, strict=True) if at == alias])
        waiting.model._default_manager.using(waiting.db).filter(pk__in=[row.pk for row in rows]).delete()
    return Counter(row.task_path for row in rows)


def _grouped(rows: list[Any], known: Mapping[str, DjangoTask]) -> dict[Group, list[EncodedCall]]:
    groups: defaultdict[Group, list[EncodedCall]] = defaultdict(list)
    for row in rows:
        run_after = None if row.run_after is None or row.run_after.year == NO_RUN_AFTER_YEAR else row.run_after
        args, kwargs = row.args_kwargs["args"], row.args_kwargs["kwargs"]
        columns = call_columns(known[row.task_path], args, kwargs)
        groups[row.task_path, row.queue_name, row.priority, run_after].append(call(args, kwargs, columns))
    return groups


def _counted(rows: models.QuerySet[Any]) -> Counter[str]:
    paths = rows.order_by().values_list("task_path")
    return Counter(dict(paths.annotate(models.Count("pk"))))


def _summary(counts: Counter[str]) -> str:
    each = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{counts.total():,} tasks ({each})" if each else "0 tasks"
