"""`Pruner`: a job that cannot be deleted does not stop the deletion of other jobs."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ..app.rows import make_job
from ..app.sessions import Session
from ..harness.threads import terminate

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = timedelta(days=-100)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def foreign_key_table() -> Iterator[None]:
    """Create a table as Django does for a project's `ForeignKey(Job, on_delete=SET_NULL, null=True)`."""
    execute(
        "CREATE TABLE theirs (id bigserial, job_id bigint REFERENCES skipqueue_job DEFERRABLE INITIALLY DEFERRED);"
        "CREATE INDEX ON theirs (job_id)"
    )
    yield
    execute("DROP TABLE theirs")


def prune_all(pruner: Pruner, *, batches: int = 300) -> int:
    """Prune until nothing is left to prune. Returns the number of deleted jobs."""
    deleted_count = sum(pruner.batch().values())
    for _ in range(batches):
        if not pruner.has_more:
            return deleted_count
        deleted_count += sum(pruner.batch().values())
    raise AssertionError(f"after {batches} batches there is still more")


@pytest.mark.usefixtures("foreign_key_table")
def test_pruning_skips_and_names_jobs_with_foreign_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = [make_job("completed", finished_at=LONG_AGO).pk for _ in range(40)]
    kept_ids = {ids[0], ids[1], ids[17], ids[39]}
    execute(f"INSERT INTO theirs (job_id) VALUES {', '.join(f'({id})' for id in kept_ids)}")
    pruner = Pruner(Store("default"))
    assert prune_all(pruner) == 36  # all jobs without a foreign key
    assert set(Job.objects.values_list("pk", flat=True)) == kept_ids
    for id in kept_ids:
        assert f"job not pruned id={id} error=" in caplog.text
    assert "theirs" in caplog.text
    assert (pruner.batch(), pruner.has_more) == ({}, False), "the pruner does not try these jobs again"


@pytest.mark.usefixtures("foreign_key_table")
def test_a_job_that_could_not_be_deleted_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.supervisor.services.SKIPPED_SECONDS", 0.0)
    job = make_job("failed", finished_at=LONG_AGO)
    execute(f"INSERT INTO theirs (job_id) VALUES ({job.pk})")
    pruner = Pruner(Store("default"))
    for _ in range(15):
        assert pruner.batch() == {}
    execute("DELETE FROM theirs")
    assert pruner.batch() == {"failed": 1}


@pytest.mark.usefixtures("foreign_key_table")
def test_prunejobs_ends_although_a_job_cannot_be_deleted() -> None:
    jobs = [make_job("completed", finished_at=LONG_AGO) for _ in range(5)]
    execute(f"INSERT INTO theirs (job_id) VALUES ({jobs[2].pk})")
    call_command("prunejobs", verbosity=0)
    assert list(Job.objects.all()) == [jobs[2]]


@pytest.fixture
def slow_deletes() -> Iterator[None]:
    """Make each deletion of a row take 20 ms, and set a statement timeout."""
    execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.02); RETURN OLD; END';"
        "CREATE TRIGGER slow BEFORE DELETE ON skipqueue_job FOR EACH ROW EXECUTE FUNCTION slow();"
        "SET statement_timeout = '300ms'"
    )
    yield
    execute("RESET statement_timeout; DROP TRIGGER slow ON skipqueue_job; DROP FUNCTION slow()")


@pytest.mark.usefixtures("slow_deletes")
def test_jobs_past_both_retentions_are_chosen_twice_and_all_are_pruned_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_skipqueue.supervisor.services.BATCH_ROWS", 10)
    for age, count in ((LONG_AGO, 4), (timedelta(minutes=-5), 8)):
        for _ in range(count):
            make_job("completed", finished_at=age, retention={"completed": 60})
    assert prune_all(Pruner(Store("default"))) == 12


def test_many_old_jobs_are_all_pruned() -> None:
    for _ in range(40):
        make_job("completed", finished_at=LONG_AGO)
    assert prune_all(Pruner(Store("default"))) == 40


def test_no_job_counts_as_undeletable_because_a_connection_broke(session: Callable[[], Session]) -> None:
    make_job("completed", finished_at=LONG_AGO)
    pruner, supervisor = Pruner(Store("default")), session()
    terminate([supervisor.pid])
    with pytest.raises(OperationalError):
        supervisor(pruner.batch)
    assert pruner.batch() == {"completed": 1}


@pytest.mark.usefixtures("foreign_key_table")
def test_pruning_ends_although_more_jobs_are_undeletable_than_the_pruner_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_skipqueue.supervisor.services.MOST_SKIPPED", 3)
    ids = [make_job("completed", finished_at=LONG_AGO).pk for _ in range(6)]
    execute(f"INSERT INTO theirs (job_id) VALUES {', '.join(f'({id})' for id in ids)}")
    assert prune_all(Pruner(Store("default")), batches=50) == 0
