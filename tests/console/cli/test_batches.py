"""`skipqueue batches`: lists batches of jobs, and shows one batch with its callbacks."""

import pytest

from django_skipqueue import Batch
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Job, JobBatch
from django_skipqueue.testing import run_jobs

from ...app import jobs
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def make_batch(name: str, job_count: int = 2) -> Batch:
    with Batch(name=name, on_success=jobs.echo.s("sent"), on_failure=jobs.noop) as batch:
        jobs.add.defer_many([(number,) for number in range(job_count)])
    return batch


def test_the_command_lists_the_newest_batches() -> None:
    make_batch("done")
    run_jobs()
    make_batch("runs", job_count=3)
    failed_batch = make_batch("broken")
    JobBatch.objects.filter(pk=failed_batch.id).update(
        finished_at=failed_batch.row.created_at, completed=1, failed=1, discarded=0
    )
    result = skipqueue("batches")
    assert result.code == 0
    table_rows = [line.split() for line in result.out.splitlines()[1:]]
    assert [table_row[1] for table_row in table_rows] == ["broken", "runs", "done"]
    assert "0/3" in table_rows[1]
    assert "2/2" in table_rows[2]
    assert [batch["name"] for batch in skipqueue("batches", "--state", "failures", "--json").objects] == ["broken"]
    assert len(skipqueue("batches", "--limit", "1", "--json").objects) == 1


def test_the_command_shows_a_batch_with_its_callbacks() -> None:
    batch = make_batch("receipts")
    run_jobs()
    job = Job.objects.get(task=jobs.echo.name)
    result = skipqueue("batches", str(batch.id))
    assert result.code == 0
    assert f"{job.pk}" in result.out
    assert "not called" in result.out
    [shown_batch] = skipqueue("batches", str(batch.id), "--json").objects
    assert (shown_batch["done"], shown_batch["total"], shown_batch["counts"]) == (2, 2, {"completed": 2})
    assert shown_batch["callbacks"][0] == {
        "name": "on_success", "task": jobs.echo.name, "job_id": job.pk, "state": "completed",
    }  # fmt: skip


def test_the_exit_code_says_whether_there_are_batches() -> None:
    assert (skipqueue("batches").code, skipqueue("batches", "5").code) == (Exit.NEGATIVE, Exit.ERROR)
    assert "There is no batch 5." in skipqueue("batches", "5").err
    assert skipqueue("batches", str(10**30)).code == Exit.ERROR
    assert skipqueue("batches", "--limit", "0").code == Exit.USAGE
    assert "There is no such batch." in skipqueue("batches", "--state", "running").err
