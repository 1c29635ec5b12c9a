"""`operations_of`, which reads from a job's row how operators have changed the job."""

from typing import Any

import pytest

from django_skipqueue.console.admin.jobs.history import operations_of
from django_skipqueue.console.operations import attempts_before
from django_skipqueue.queue.store import Store

from ....app.rows import make_job
from .. import hostile

store = Store("default")

pytestmark = pytest.mark.django_db


def test_operations_that_verbs_have_written_are_read_back() -> None:
    job = make_job("failed", attempts=3)
    job.retry(by="ann", reason="the bank is back")
    job.discard("no longer wanted", by="bob")
    job.refresh_from_db()
    retried, discarded = operations_of(job)
    assert (retried.done_by, retried.reason, retried.attempts, retried.status) == (
        "retried by ann", "the bank is back", 3, "queued",
    )  # fmt: skip
    assert (discarded.done_by, discarded.reason, discarded.status) == (
        "discarded by bob",
        "no longer wanted",
        "discarded",
    )
    assert retried.at <= discarded.at
    assert attempts_before([retried, discarded], None) == 3


def test_retrying_many_jobs_writes_the_operation_into_each_row() -> None:
    jobs = [make_job("failed") for _ in range(3)]
    store.retry([job.pk for job in jobs], by="ann")
    for job in jobs:
        job.refresh_from_db()
        assert [operation.done_by for operation in operations_of(job)] == ["retried by ann"]


def test_an_operation_of_a_program_names_nobody() -> None:
    job = make_job()
    job.cancel()
    job.refresh_from_db()
    assert [operation.done_by for operation in operations_of(job)] == ["cancelled"]


@pytest.mark.parametrize(
    "entry",
    [None, 1, "x", [], {}, {"verb": "retry"}, {"verb": 1, "at": "2026-01-01T00:00:00+00:00"}]
    + [
        {"verb": "retry", "at": at}
        for at in (None, 1, "x", "2026-01-01", "2026-02-31T00:00:00Z", "2026-01-01T00:00:00")
    ],
)
def test_an_invalid_operation_is_left_out(entry: Any) -> None:
    assert operations_of(make_job(operations=[entry])) == []


@pytest.mark.parametrize("text", hostile.TEXTS.values(), ids=hostile.TEXTS)
def test_long_texts_of_an_operation_are_shortened(text: str) -> None:
    fields = dict.fromkeys(("verb", "by", "reason", "attempts"), text * 1000)
    (operation,) = operations_of(make_job(operations=[fields | {"at": "2026-01-01T00:00:00+00:00"}]))
    assert max(map(len, (operation.verb, operation.by, operation.reason))) <= 500
    assert operation.attempts == 0
