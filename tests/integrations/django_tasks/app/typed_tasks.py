"""Tasks of Django's with annotated parameters and results."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import django
from django.contrib.auth.models import User

from django_skipqueue import limit, unique_by, with_options
from tests.app.typed_jobs import Line, Size

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task

received_arguments: list[Any] = []
"""The arguments with which the tasks were called."""


@task
def see(at: datetime, price: Decimal, *spans: timedelta, lines: list[Line] | None = None, note: Any = None) -> None:
    received_arguments.append((at, price, spans, lines, note))


@task(takes_context=True)
def see_user(context: "TaskContext[Any, Any]", user: User, size: Size) -> User:
    received_arguments.append((context.task_result.args, user, size))
    return user


@task
async def asee_user(user: User) -> Decimal:
    received_arguments.append(user)
    return Decimal("1.50")


@task
def priced(of: Any) -> Decimal:
    """Return `of`, which does not fit the annotation unless it is a Decimal."""
    return of  # type: ignore[no-any-return]


@task
@with_options(unique=unique_by("at"))
def unique_at(at: datetime, note: Any = None) -> None: ...


@task
@with_options(unique_key=lambda at, note: f"{at.year}-{note[0]}", concurrency=limit(1, by="at"))
def keyed_at(at: datetime, note: Any) -> None: ...
