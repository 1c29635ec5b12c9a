"""Rows that were written by hand or by SQL: each of these jobs fails alone, and ends no worker."""

from collections import Counter
from collections.abc import Callable

import pytest
from django.db import connection

from django_skipqueue.exceptions import InvalidArguments
from django_skipqueue.models import Job
from django_skipqueue.values.codec import MOST_LEVELS

from ...app.jobs import echo, noop
from ...harness.processes import ManagePy

LEVELS = 3_000
DIGITS = "9" * 6_000

INSERT = """
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status)
VALUES ('default', 'tests.app.jobs.echo', %s::jsonb, %s::jsonb, 'queued')
RETURNING id
"""

ODD_ARGUMENTS = {
    "args are null": ("null", "{}"),
    "args are a number": ("5", "{}"),
    "kwargs are a list": ("[]", "[1]"),
    "thousands of levels": ("[" * LEVELS + "]" * LEVELS, "{}"),
    "thousands of digits": (f"[{DIGITS}]", "{}"),
}


@pytest.mark.django_db(transaction=True)
def test_a_job_with_unreadable_arguments_fails_without_retries_and_does_not_end_its_worker(
    runworker: Callable[..., ManagePy],
) -> None:
    with connection.cursor() as cursor:
        for args, kwargs in ODD_ARGUMENTS.values():
            cursor.execute(INSERT, [args, kwargs])
    readable_ids = noop.defer_many([()] * 20)
    process = runworker("--drain", "--processes", "1")
    assert process.wait() == 0
    assert Job.objects.completed().count() == len(readable_ids)
    failures = Job.objects.failed().values_list("attempts", "last_error")
    attempts_and_errors = [(attempts, error.split(":")[0]) for attempts, error in failures]
    assert [attempts for attempts, _ in attempts_and_errors] == [1] * len(ODD_ARGUMENTS)
    errors = Counter(error for _, error in attempts_and_errors)
    # Python 3.13 can read thousands of levels, and then refuses to store them as the result.
    assert errors in ({"UnreadableArguments": 5}, {"UnreadableArguments": 4, "UnstorableResult": 1})
    assert "worker died" not in process.log


def nested(levels: int, kind: type = list) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [list, dict])
def test_defer_refuses_arguments_nested_deeper_than_a_worker_can_read(kind: type) -> None:
    assert echo.defer(nested(MOST_LEVELS, kind)).pk
    with pytest.raises(InvalidArguments, match=r"value is nested too deeply, or .* over 200 levels"):
        echo.defer(nested(MOST_LEVELS + 1, kind))
    assert Job.objects.count() == 1
