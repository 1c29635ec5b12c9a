"""The archive: one statement moves pruned jobs to it, and processes make and drop its partitions by month."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models.functions import Now

from django_skipqueue.models import ArchivedJob, Job
from django_skipqueue.models.expressions import table_names
from django_skipqueue.parts.archive.move import drop_partition, make_partitions
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ...app.rows import FINISHED, UNFINISHED, make_job, state
from ...app.sessions import LAST_MIGRATION, Session, schema
from ...app.waiting import within
from ...harness.partitions import drop_partitions, partitions
from ...harness.pgbouncer import PGBOUNCER
from ...harness.threads import terminate
from ...queue.test_pgbouncer import pooled_alias

__all__ = ["pooled_alias"]

store = Store("default")

DAY = timedelta(days=1)
OLD = -100 * DAY

MakeSession = Callable[[], Session]
OpenSession = Callable[..., psycopg.Connection[Any]]

COLUMNS_LEFT_OUT = {"lease", "locked_at", "deaths", "unknown_since", "batch_id", "held", "gate"}
"""The columns of a job that its archived row does not have."""


def execute(statement: str, using: str = "default") -> list[Any]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def partition_month(moment: datetime, later: int = 0) -> str:
    """The month of this moment, or a later month, as it is written in the name of a partition."""
    year, month_index = divmod(moment.year * 12 + moment.month - 1 + later, 12)
    return f"{year:04}_{month_index + 1:02}"


def now() -> datetime:
    """The database's time."""
    ((moment,),) = execute("SELECT statement_timestamp()")
    assert isinstance(moment, datetime)
    return moment.astimezone(UTC)


@pytest.fixture
def set_archive(settings: Any) -> Callable[..., None]:
    """Sets `ARCHIVE`, at first to a year."""

    def set_setting(**setting: Any) -> None:
        settings.SKIPQUEUE = {"ARCHIVE": timedelta(days=365)} | setting

    set_setting()
    return set_setting


@pytest.fixture
def set_archive_and_commit(transactional_db: None, set_archive: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """Set `ARCHIVE` in a test that commits, and drop the partitions at the end."""
    yield set_archive
    drop_partitions()


@pytest.mark.django_db
@pytest.mark.usefixtures("set_archive")
class TestMove:
    def test_a_pruned_job_is_in_the_archive_with_all_its_columns(self) -> None:
        job = make_job(
            "failed",
            finished_at=OLD,
            args=[1, "x"],
            kwargs={"payment_id": 42},
            errors=[{"attempt": 1, "message": "no"}],
            operations=[{"verb": "retry", "by": "anna", "at": "2026-01-01T00:00:00Z"}],
            metadata={"tenant": 7},
            unique_key="key",
            retention={"failed": 3600},
            timeout=2.5,
            last_error="ValueError: no",
            locked_by="w:1",
            started_at=OLD,
        )
        columns_of_job = state(job)
        assert sum(Pruner(store).batch().values()) == 1
        assert not Job.objects.exists()
        (archived,) = ArchivedJob.objects.values()
        archived_columns = {name: value for name, value in columns_of_job.items() if name not in COLUMNS_LEFT_OUT}
        assert archived == {**archived_columns, "records": None}
        assert str(ArchivedJob.objects.get()) == str(job)

    def test_every_column_of_jobs_is_archived_or_left_out_on_purpose(self) -> None:
        jobs, archived = ({field.column for field in model._meta.concrete_fields} for model in (Job, ArchivedJob))
        assert archived == jobs - COLUMNS_LEFT_OUT | {"records"}
        columns = execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name = 'skipqueue_archivedjob'"
        )
        assert {column for (column,) in columns} == archived

    @pytest.mark.parametrize("status", FINISHED)
    def test_every_finished_status_is_archived_and_counted(self, status: str) -> None:
        make_job(status, finished_at=OLD)
        make_job(status, finished_at=OLD / 2)
        make_job(status)
        make_partitions(store)
        assert store.prune() == {status: 2}
        assert ArchivedJob.objects.count() == 2
        assert Job.objects.count() == 1

    @pytest.mark.parametrize("status", UNFINISHED)
    def test_a_job_within_its_retention_is_not_archived(self, status: str, set_archive: Callable[..., None]) -> None:
        set_archive(RETENTION={"completed": 0, "failed": 0, "discarded": 0})
        make_job(status)
        make_partitions(store)
        assert store.prune() == {}
        assert Job.objects.count() == 1

    def test_a_job_past_the_retention_of_the_archive_is_deleted(self) -> None:
        make_job("failed", finished_at=-366 * DAY)
        within_retention = make_job("failed", finished_at=-364 * DAY)
        make_partitions(store)
        assert partitions() == [partition_month(now() - 364 * DAY), partition_month(now())]
        assert store.prune() == {"failed": 2}
        assert [archived.pk for archived in ArchivedJob.objects.all()] == [within_retention.pk]

    def test_without_a_retention_of_the_archive_a_job_of_any_age_is_archived(
        self, set_archive: Callable[..., None]
    ) -> None:
        set_archive(ARCHIVE=None)
        make_job("failed", finished_at=-4000 * DAY)
        assert Pruner(store).batch() == {"failed": 1}
        assert ArchivedJob.objects.count() == 1

    def test_once_the_archive_is_switched_off_jobs_are_deleted_and_the_archive_stays(
        self, set_archive: Callable[..., None]
    ) -> None:
        make_job("failed", finished_at=OLD)
        Pruner(store).batch()
        set_archive(ARCHIVE=False)
        make_job("failed", finished_at=OLD)
        assert Pruner(store).batch() == {"failed": 1}
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (0, 1)

    def test_two_jobs_with_one_id_may_be_archived(self) -> None:
        """Ids repeat after somebody has reset the sequence of ids."""
        for finished_at in (OLD, OLD * 2):
            make_job("failed", id=7, finished_at=finished_at)
            assert Pruner(store).batch() == {"failed": 1}
        assert ArchivedJob.objects.filter(pk=7).count() == 2


def prune_all() -> dict[str, int]:
    """Prune until nothing is left. Return the counts of the last batch that has pruned jobs."""
    pruner = Pruner(store)
    pruned = pruner.batch()
    while pruner.has_more:
        pruned = pruner.batch() or pruned
    return pruned


class TestRowsThatCannotBeArchived:
    """Rows that cannot be archived stay in the job table, and all other jobs move."""

    def test_a_job_that_a_constraint_of_the_archive_refuses_is_left_and_logged(
        self, set_archive_and_commit: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        refused_job = make_job("completed", finished_at=OLD, queue_name="bad")
        other_ids = [make_job("completed", finished_at=OLD).pk for _ in range(20)]
        execute("ALTER TABLE skipqueue_archivedjob ADD CONSTRAINT good CHECK (queue_name <> 'bad')")
        try:
            with within(20):
                prune_all()
        finally:
            execute("ALTER TABLE skipqueue_archivedjob DROP CONSTRAINT good")
        assert set(ArchivedJob.objects.values_list("pk", flat=True)) == set(other_ids)
        assert list(Job.objects.all()) == [refused_job]
        assert f"job not pruned id={refused_job.pk} error=" in caplog.text

    def test_jobs_of_existing_months_are_archived_if_no_partition_can_be_made(
        self, set_archive_and_commit: None, connect: OpenSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        make_partitions(store)
        job_of_this_month = make_job("completed", finished_at=timedelta(0), retention={"completed": 0})
        job_without_partition = make_job("completed", finished_at=OLD)
        locking_session = connect(autocommit=False)
        locking_session.execute("LOCK TABLE skipqueue_archivedjob IN SHARE UPDATE EXCLUSIVE MODE")
        with within(20):
            prune_all()
        locking_session.rollback()
        assert list(ArchivedJob.objects.values_list("pk", flat=True)) == [job_of_this_month.pk]
        assert list(Job.objects.all()) == [job_without_partition]
        assert "partitions not made error=" in caplog.text


class TestCrash:
    """A job is in exactly one table, whatever happens to the session that moves it."""

    def test_a_session_that_dies_between_delete_and_insert_has_moved_nothing(
        self, set_archive_and_commit: None, session: MakeSession, connect: OpenSession
    ) -> None:
        job = make_job("completed", finished_at=OLD)
        make_partitions(store)
        locking_session = connect(autocommit=False)
        locking_session.execute("LOCK TABLE skipqueue_archivedjob IN SHARE MODE")
        pruning = session()
        pruning_result = pruning.start(store.prune)
        pruning.wait_until_blocked()
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (1, 0)
        terminate([pruning.pid])
        with pytest.raises(OperationalError):
            pruning_result.result(20)
        locking_session.rollback()
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (1, 0)
        assert store.prune() == {"completed": 1}
        assert list(ArchivedJob.objects.values_list("pk", flat=True)) == [job.pk]
        assert not Job.objects.exists()

    def test_a_session_that_dies_before_its_commit_has_moved_nothing(
        self, set_archive_and_commit: None, session: MakeSession
    ) -> None:
        make_job("completed", finished_at=OLD)
        make_partitions(store)
        pruning = session()
        pruning.begin()
        assert pruning(store.prune) == {"completed": 1}
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (1, 0)
        terminate([pruning.pid])
        with pytest.raises(OperationalError):
            pruning(store.prune)
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (1, 0)

    def test_processes_that_prune_at_once_move_each_job_once(
        self, set_archive_and_commit: None, session: MakeSession
    ) -> None:
        job_ids = {make_job("completed", finished_at=OLD).pk for _ in range(60)}
        sessions = [session() for _ in range(4)]
        prunes = [each_session.start(lambda: Pruner(store).batch()) for each_session in sessions]
        assert sum(sum(prune.result(20).values()) for prune in prunes) == 60
        assert sorted(ArchivedJob.objects.values_list("pk", flat=True)) == sorted(job_ids)
        assert not Job.objects.exists()


@pytest.mark.django_db
@pytest.mark.usefixtures("set_archive")
class TestMakePartitions:
    def test_partitions_are_made_for_this_month_and_the_months_ahead(self) -> None:
        assert make_partitions(store, ahead=2) == 3
        assert partitions() == [partition_month(now(), later) for later in range(3)]
        assert make_partitions(store, ahead=2) == 0

    def test_only_months_with_finished_jobs_have_a_partition(self) -> None:
        for days in (200, 201, 199, 90):
            make_job("completed", finished_at=-days * DAY)
        make_job("failed", finished_at=-150 * DAY)
        months = {partition_month(now() - days * DAY) for days in (200, 201, 199, 90, 150, 0)}
        assert make_partitions(store) == len(months)
        assert partitions() == sorted(months)

    def test_a_job_at_either_end_of_its_month_finds_its_partition(self) -> None:
        """A month is a month in UTC, whatever the time zone of the session."""
        execute("SET LOCAL TIME ZONE 'Pacific/Kiritimati'")
        month_start = datetime(now().year - 1, 12, 1, tzinfo=UTC)
        for moment in (
            month_start,
            month_start - timedelta(microseconds=1),
            month_start + timedelta(days=31, microseconds=-1),
        ):
            make_job("completed", finished_at=moment)
        execute("SET LOCAL TIME ZONE 'America/Los_Angeles'")
        assert Pruner(store).batch() == {"completed": 3}
        jobs_by_partition = execute("SELECT tableoid::regclass::text, count(*) FROM skipqueue_archivedjob GROUP BY 1")
        assert dict(jobs_by_partition) == {
            f"skipqueue_archivedjob_{month_start.year}_11": 1,
            f"skipqueue_archivedjob_{month_start.year}_12": 2,
        }

    def test_every_partition_has_the_indexes_of_the_archive(self) -> None:
        make_partitions(store)
        number_of_indexes = dict(execute("SELECT tablename, count(*) FROM pg_indexes GROUP BY 1"))
        assert (
            number_of_indexes[f"skipqueue_archivedjob_{partition_month(now())}"]
            == number_of_indexes["skipqueue_archivedjob"]
            == 4
        )

    def test_a_partition_of_another_shape_made_by_hand_is_respected(self) -> None:
        execute("CREATE TABLE by_hand PARTITION OF skipqueue_archivedjob FOR VALUES FROM (MINVALUE) TO ('2200-01-01')")
        assert make_partitions(store, ahead=2) == 0

    def test_a_manually_detached_partition_is_attached_when_needed(self) -> None:
        make_job("completed", finished_at=OLD)
        Pruner(store).batch()
        execute(
            f"ALTER TABLE skipqueue_archivedjob DETACH PARTITION skipqueue_archivedjob_{partition_month(now() + OLD)}"
        )
        make_job("completed", finished_at=OLD)
        assert Pruner(store).batch() == {"completed": 1}
        assert ArchivedJob.objects.count() == 2


class TestLocks:
    """The commands that make and drop partitions neither wait long nor make other transactions wait long."""

    def test_readers_and_writers_do_not_keep_a_partition_from_being_made(
        self, set_archive_and_commit: None, connect: OpenSession
    ) -> None:
        make_partitions(store)
        with ExitStack() as stack:
            for mode in ("ACCESS SHARE", "ROW EXCLUSIVE"):
                locking_session = stack.enter_context(connect(autocommit=False))
                locking_session.execute(f"LOCK TABLE skipqueue_archivedjob IN {mode} MODE")
            with within(20):
                assert make_partitions(store, ahead=1) == 1

    def test_many_supervisors_may_make_partitions_at_once(
        self, set_archive_and_commit: None, session: MakeSession
    ) -> None:
        make_job("completed", finished_at=OLD)
        sessions = [session() for _ in range(4)]
        results = [each_session.start(make_partitions, store, ahead=2) for each_session in sessions]
        assert sum(result.result(20) for result in results) == 4, "each of the four partitions is made once"
        assert len(partitions()) == 4

    @pytest.mark.parametrize("reads", [True, False], ids=["a reader", "a writer"])
    def test_a_drop_gives_up_soon_so_that_later_transactions_do_not_wait_for_it(
        self, set_archive_and_commit: Callable[..., None], connect: OpenSession, reads: bool
    ) -> None:
        make_job("failed", finished_at=OLD)
        Pruner(store).batch()
        set_archive_and_commit(ARCHIVE=timedelta(days=30))
        locking_session = connect(autocommit=False)
        locking_session.execute(
            "SELECT count(*) FROM skipqueue_archivedjob"
            if reads
            else "LOCK TABLE skipqueue_archivedjob IN ROW EXCLUSIVE MODE"
        )
        with within(20), pytest.raises(OperationalError, match="lock timeout"):
            drop_partition(store)
        assert ArchivedJob.objects.count() == 1
        locking_session.rollback()
        assert drop_partition(store)


@pytest.mark.django_db
@pytest.mark.usefixtures("set_archive")
class TestDropPartition:
    def test_the_oldest_partition_whose_last_job_is_past_the_retention_is_dropped(
        self, set_archive: Callable[..., None]
    ) -> None:
        set_archive(ARCHIVE=None)
        for days in (500, 400, 330):
            make_job("failed", finished_at=-days * DAY)
        Pruner(store).batch()
        set_archive()
        assert drop_partition(store)
        assert drop_partition(store)
        assert not drop_partition(store)
        assert partitions() == [partition_month(now() - 330 * DAY), partition_month(now())]
        assert ArchivedJob.objects.count() == 1

    def test_a_partition_with_a_job_within_the_retention_stays(self, set_archive: Callable[..., None]) -> None:
        make_job("failed", finished_at=OLD)
        Pruner(store).batch()
        month_start = (now() + OLD).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        next_month_start = (month_start + timedelta(days=32)).replace(day=1)
        set_archive(ARCHIVE=now() - next_month_start + timedelta(seconds=60))
        assert not drop_partition(store)
        set_archive(ARCHIVE=now() - next_month_start)
        assert drop_partition(store)

    def test_without_a_retention_no_partition_is_dropped(self, set_archive: Callable[..., None]) -> None:
        set_archive(ARCHIVE=None)
        make_job("failed", finished_at=-9000 * DAY)
        Pruner(store).batch()
        assert not drop_partition(store)


@pytest.mark.skipif(not PGBOUNCER, reason="PgBouncer is not installed")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_jobs_are_archived_behind_pgbouncer_in_transaction_mode(
    pooled_alias: str, set_archive: Callable[..., None]
) -> None:
    pooled_store = Store(pooled_alias)
    set_archive(ARCHIVE=None)
    make_job("failed", using=pooled_alias, finished_at=OLD)
    try:
        assert Pruner(pooled_store).batch() == {"failed": 1}
        set_archive(ARCHIVE=30 * DAY)
        assert drop_partition(pooled_store)
        assert execute("SHOW lock_timeout", pooled_alias) == [("0",)], "the timeout was set only for the transaction"
    finally:
        drop_partitions(pooled_alias)


@pytest.mark.django_db
def test_an_owner_of_the_tables_who_is_no_superuser_can_archive(set_archive: Callable[..., None]) -> None:
    with schema("owned") as migrate:
        migrate(LAST_MIGRATION)
        with transaction.atomic(using="owned"):
            execute("CREATE ROLE plain; ALTER SCHEMA owned OWNER TO plain", "owned")
            for table in table_names():
                execute(f"ALTER TABLE {table} OWNER TO plain", "owned")
            execute("SET LOCAL ROLE plain", "owned")
            make_job("failed", using="owned", finished_at=OLD)
            assert Pruner(Store("owned")).batch() == {"failed": 1}
            set_archive(ARCHIVE=30 * DAY)
            assert drop_partition(Store("owned"))
            transaction.set_rollback(True, using="owned")


@pytest.mark.django_db
def test_the_partitions_are_in_the_schema_of_the_archive(set_archive: Callable[..., None]) -> None:
    with schema("away") as migrate:
        migrate(LAST_MIGRATION)
        execute("CREATE SCHEMA before; SET search_path TO before, away", "away")
        try:
            assert make_partitions(Store("away")) == 1
            schemas = execute(
                "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'skipqueue_archivedjob_2%'", "away"
            )
        finally:
            execute("SET search_path TO away; DROP SCHEMA before CASCADE", "away")
    assert schemas == [("away",)]


@pytest.mark.django_db
@pytest.mark.usefixtures("set_archive")
def test_an_archived_job_is_read_from_the_database_of_the_queue() -> None:
    make_job("failed", finished_at=OLD)
    Pruner(store).batch()
    assert ArchivedJob.objects.filter(finished_at__lt=Now()).count() == 1
    assert ArchivedJob.objects.all().db == "default"
    assert connection.alias == "default"
