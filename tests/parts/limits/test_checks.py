"""The system check of limits."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_skipqueue import by, job, limit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.parts.limits.part import check_halting

from ...test_checks import ids, run_check, send_update


@pytest.mark.parametrize(
    ("options", "retention_of_failed", "found_ids"),
    [
        ({"sequence": by("order")}, 0, ["skipqueue.W003"]),
        ({"sequence": by("order")}, timedelta(hours=23), ["skipqueue.W003"]),
        ({"sequence": by("order")}, timedelta(days=1), []),
        ({"sequence": by("order")}, None, []),
        ({"sequence": by("order", on_failure="continue")}, 0, []),
        ({"concurrency": limit(1, by="order")}, 0, []),
    ],
)
def test_the_check_names_a_halting_sequence_whose_failed_jobs_are_kept_less_than_a_day(
    registry: Registry, options: dict[str, Any], retention_of_failed: Any, found_ids: list[str]
) -> None:
    decorate: Callable[..., Any] = job(name="send", **options)
    decorate(send_update)
    with override_settings(SKIPQUEUE={"RETENTION": {"failed": retention_of_failed}}):
        messages = run_check(check_halting)
    assert ids(messages) == found_ids
    assert all("'send'" in message.msg for message in messages)
