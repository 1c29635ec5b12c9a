"""NOTIFY is sent after the commit, once for each queue and transaction. A lost NOTIFY loses no job."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from psycopg.pq import TransactionStatus

from django_skipqueue.events.events import JobsDeferred
from django_skipqueue.models import Job
from django_skipqueue.queue import enqueue
from django_skipqueue.queue.enqueue import ENQUEUE_AND_NOTIFY, INSERTED
from django_skipqueue.queue.notify import GATES_PAYLOAD, jobs_in
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import EncodedCall, JobSpec

from ..app import jobs
from ..app.rows import lease_of, make_job, settle_and_claim
from ..app.sessions import connect as connect_to

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


class NotificationListener:
    """A connection that listens as a worker does, or on the channel of supervisors."""

    def __init__(self, channel: LiteralString = "skipqueue") -> None:
        self.connection = connect_to()
        self.connection.execute(f"LISTEN {channel}")
        self.channel = channel
        self.fence = 0

    def queues_named(self) -> list[str]:
        """The queues that notifications have named since the last call."""
        return [jobs_in(payload)[0] for payload in self.payloads()]

    def payloads(self) -> list[str]:
        """The payloads since the last call. Sends a payload itself, the fence, and reads until it arrives.

        Notifications arrive in the order of the commits.
        """
        self.fence += 1
        fence_payload = f"fence {self.fence}"
        with connect_to() as other_connection:
            other_connection.execute("SELECT pg_notify(%s, %s)", [self.channel, fence_payload])
        payloads: list[str] = []
        for notification in self.connection.notifies(timeout=20):
            if notification.payload == fence_payload:
                return payloads
            payloads.append(notification.payload)
        raise AssertionError("the fence was never heard")


@pytest.fixture
def listener(transactional_db: None) -> Iterator[NotificationListener]:
    notification_listener = NotificationListener()
    yield notification_listener
    notification_listener.connection.close()


def defer_noop(queue_name: str) -> None:
    jobs.noop.using(queue_name=queue_name).defer()


def test_in_autocommit_each_job_is_notified_at_once(listener: NotificationListener) -> None:
    defer_noop("a")
    assert listener.queues_named() == ["a"]
    defer_noop("a")
    defer_noop("b")
    assert listener.queues_named() == ["a", "b"]


def test_in_a_transaction_each_queue_is_notified_once_after_the_commit(listener: NotificationListener) -> None:
    with transaction.atomic():
        for queue in ("a", "b", "a", "b", "a"):
            defer_noop(queue)
        jobs.noop.using(queue_name="a").defer_many([()] * 10)
        assert listener.queues_named() == []
    assert sorted(listener.queues_named()) == ["a", "b"]


def test_the_payload_has_the_number_of_jobs(listener: NotificationListener) -> None:
    defer_noop("a")
    jobs.noop.using(queue_name="b").defer_many([()] * 10)
    with transaction.atomic():
        defer_noop("a")
        jobs.noop.using(queue_name="a").defer_many([()] * 10)
    payloads = listener.payloads()
    assert payloads == ["a", "b,10", "a,11"]
    assert [jobs_in(payload) for payload in payloads] == [("a", 1), ("b", 10), ("a", 11)]


def test_the_notify_is_a_statement_of_its_own_after_the_commit() -> None:
    """A NOTIFY inside the transaction would lock the whole database at the caller's commit."""
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        defer_noop("a")
        defer_noop("a")
    first_words = [query["sql"].strip().split(None, 1)[0] for query in queries]
    assert first_words == ["BEGIN", "INSERT", "INSERT", "COMMIT", "SELECT"]


def test_a_job_can_be_claimed_when_its_notification_arrives(
    listener: NotificationListener, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    other_connection = connect()
    with transaction.atomic():
        defer_noop("a")
    assert listener.queues_named() == ["a"]
    assert other_connection.execute("SELECT count(*) FROM skipqueue_job").fetchone() == (1,)


def test_a_rollback_sends_no_notification(listener: NotificationListener) -> None:
    with transaction.atomic():
        defer_noop("a")
        transaction.set_rollback(True)
    assert listener.queues_named() == []


def test_each_transaction_sends_a_notification(listener: NotificationListener) -> None:
    for _ in range(2):
        with transaction.atomic():
            defer_noop("a")
    assert listener.queues_named() == ["a", "a"]


def test_a_transaction_after_a_rollback_sends_a_notification(listener: NotificationListener) -> None:
    with transaction.atomic():
        defer_noop("a")
        transaction.set_rollback(True)
    with transaction.atomic():
        defer_noop("a")
    assert listener.queues_named() == ["a"]


class TestSavepoints:
    def test_a_savepoint_that_rolls_back_sends_nothing(self, listener: NotificationListener) -> None:
        with transaction.atomic(), contextlib.suppress(RuntimeError), transaction.atomic():
            defer_noop("a")
            raise RuntimeError
        assert listener.queues_named() == []

    def test_after_a_savepoint_that_rolled_back_a_job_is_notified(self, listener: NotificationListener) -> None:
        with transaction.atomic():
            with contextlib.suppress(RuntimeError), transaction.atomic():
                defer_noop("a")
                raise RuntimeError
            defer_noop("a")
        assert listener.queues_named() == ["a"]

    def test_a_job_before_a_rolled_back_savepoint_is_still_notified(self, listener: NotificationListener) -> None:
        with transaction.atomic():
            defer_noop("a")
            with contextlib.suppress(RuntimeError), transaction.atomic():
                defer_noop("a")
                raise RuntimeError
        assert listener.queues_named() == ["a"]

    def test_a_released_savepoint_sends_one_notification(self, listener: NotificationListener) -> None:
        with transaction.atomic():
            with transaction.atomic():
                defer_noop("a")
                with transaction.atomic():
                    defer_noop("a")
            defer_noop("a")
        assert listener.queues_named() == ["a"]

    def test_a_savepoint_released_inside_one_that_rolls_back_sends_nothing(
        self, listener: NotificationListener
    ) -> None:
        with transaction.atomic():
            with contextlib.suppress(RuntimeError), transaction.atomic():
                with transaction.atomic():
                    defer_noop("a")
                raise RuntimeError
            defer_noop("b")
        assert listener.queues_named() == ["b"]


@pytest.fixture
def without_autocommit(transactional_db: None) -> Iterator[None]:
    """Switch autocommit off: the test begins and ends transactions without `atomic`."""
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.usefixtures("without_autocommit")
class TestWithoutAutocommit:
    def test_each_queue_is_notified_once_at_the_commit(self, listener: NotificationListener) -> None:
        for queue in ("a", "b", "a"):
            defer_noop(queue)
        assert listener.queues_named() == []
        transaction.commit()
        assert sorted(listener.queues_named()) == ["a", "b"]

    def test_a_rollback_sends_no_notification(self, listener: NotificationListener) -> None:
        defer_noop("a")
        transaction.rollback()
        assert listener.queues_named() == []

    def test_the_callers_commit_waits_for_the_disk(self, listener: NotificationListener) -> None:
        defer_noop("a")
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("on",)


def test_a_job_that_is_not_due_is_notified_when_it_is_admitted(listener: NotificationListener) -> None:
    jobs.noop.using(queue_name="a", run_after=timedelta(hours=1)).defer()
    jobs.noop.using(queue_name="a", run_after=timedelta(hours=1)).defer_many([()] * 3)
    assert listener.queues_named() == []
    Job.objects.update(run_after=Job.objects.first().enqueued_at)  # type: ignore[union-attr]  # now they are due
    store.admit()
    assert listener.queues_named() == ["a"]


def test_release_recovery_and_retry_notify_the_queues_of_the_jobs(listener: NotificationListener) -> None:
    for queue in ("a", "b", "b"):
        make_job(queue_name=queue)
    claimed_jobs = Job.objects.claim(queue_names=["a", "b"], limit=3, worker_id="w")
    assert listener.queues_named() == []
    store.release(map(lease_of, claimed_jobs))
    assert sorted(listener.queues_named()) == ["a", "b"]

    Job.objects.claim(queue_names=["a", "b"], limit=3, worker_id="w")
    store.recover(worker_ids=["w"])
    assert sorted(listener.queues_named()) == ["a", "b"]

    claimed_jobs = Job.objects.claim(queue_names=["a", "b"], limit=3, worker_id="w")
    store.settle([Settlement(job.pk, job.lease, Outcome("failed")) for job in claimed_jobs])
    assert listener.queues_named() == []
    store.retry([job.pk for job in claimed_jobs])
    assert sorted(listener.queues_named()) == ["a", "b"]


RETRY_NOW = Outcome("scheduled", delay=0.0)


def test_settled_retries_without_a_delay_notify_their_queue_with_their_number(listener: NotificationListener) -> None:
    running_jobs = [make_job("running", queue_name=name) for name in ("a", "a", "b", "c")]
    outcomes = [RETRY_NOW, RETRY_NOW, COMPLETED, Outcome("scheduled", delay=60.0)]
    batch = [Settlement(job.pk, job.lease, outcome) for job, outcome in zip(running_jobs, outcomes, strict=True)]
    store.settle(batch)
    assert listener.payloads() == ["a,2"], "two jobs of queue a can be claimed again at once"


def test_a_retry_without_a_delay_that_is_settled_with_a_claim_notifies_its_queue(
    listener: NotificationListener,
) -> None:
    retried_job = make_job("running", queue_name="a")
    settle_and_claim(
        [Settlement(retried_job.pk, retried_job.lease, RETRY_NOW)], queue_names=["b"], limit=1, worker_id="w"
    )
    assert listener.queues_named() == ["a"]


def test_a_retry_without_a_delay_settled_with_a_refused_outcome_notifies_its_queue(
    listener: NotificationListener,
) -> None:
    retried_job, job_with_malformed_result = (make_job("running", queue_name=name) for name in ("a", "b"))
    refused_settlement = Settlement(
        job_with_malformed_result.pk, job_with_malformed_result.lease, Outcome("completed", result="{oops")
    )
    settle_and_claim(
        [Settlement(retried_job.pk, retried_job.lease, RETRY_NOW), refused_settlement],
        queue_names=["c"],
        limit=1,
        worker_id="w",
    )
    assert listener.queues_named() == ["a"]


def test_a_retry_that_is_claimed_again_in_the_same_round_trip_sends_no_notification(
    listener: NotificationListener,
) -> None:
    retried_job = make_job("running", queue_name="a")
    settle_and_claim(
        [Settlement(retried_job.pk, retried_job.lease, RETRY_NOW)], queue_names=["a"], limit=1, worker_id="w"
    )
    assert listener.queues_named() == []


def test_run_now_notifies_the_queue_of_the_job(listener: NotificationListener) -> None:
    make_job("scheduled", queue_name="a").run_now()
    assert listener.queues_named() == ["a"]


def test_a_change_that_makes_no_job_claimable_sends_no_notification(listener: NotificationListener) -> None:
    make_job("running", attempts=10, max_attempts=10)
    completed_job = make_job("running", locked_by="another")
    store.recover(worker_ids=["w"])
    store.settle([Settlement(completed_job.pk, completed_job.lease, COMPLETED)])
    store.discard([make_job().pk])
    store.retry([completed_job.pk])
    store.release([(completed_job.pk, 99)])  # a lease that it never had
    store.admit()
    store.prune()
    assert listener.queues_named() == []


def test_a_deferred_job_whose_unique_key_exists_sends_no_notification(listener: NotificationListener) -> None:
    make_job(unique_key="k")
    jobs.noop.using(unique_key="k").defer()
    jobs.noop.using(unique_key="k").defer_many([(), ()])
    assert listener.queues_named() == []


def test_commit_hooks_of_the_caller_are_called_as_well_as_the_notification(listener: NotificationListener) -> None:
    called_hooks: list[int] = []
    with transaction.atomic():
        transaction.on_commit(lambda: called_hooks.append(1))
        defer_noop("a")
        transaction.on_commit(lambda: called_hooks.append(2))
        defer_noop("a")
    assert called_hooks == [1, 2]
    assert listener.queues_named() == ["a"]


def test_a_connection_lost_after_the_commit_does_not_skip_other_commit_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse_connection() -> None:
        raise OperationalError("the server is gone")

    def lose_the_server() -> None:
        connection.close()
        patch.setattr(connection, "connect", refuse_connection)

    called_hooks: list[str] = []
    with monkeypatch.context() as patch:
        with transaction.atomic():
            transaction.on_commit(lose_the_server)
            defer_noop("a")
            transaction.on_commit(lambda: called_hooks.append("after"))
        assert called_hooks == ["after"]
    assert Job.objects.queued().count() == 1


def test_a_failed_notify_neither_raises_nor_loses_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_notify(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "pg_notify" in sql:
            raise RuntimeError("no notify today")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse_notify):
        jobs.noop.using(queue_name="a", unique_key="k").defer()
        with transaction.atomic():
            defer_noop("a")
    assert Job.objects.queued().count() == 2


# Notifications to supervisors


@pytest.mark.parametrize(
    ("delay", "queues_named"),
    [(1.0, [""]), (3600.0, [])],
    ids=["due before the supervisors' next check", "due after the next check"],
)
def test_supervisors_are_notified_only_of_jobs_that_are_due_soon(delay: float, queues_named: list[str]) -> None:
    listener = NotificationListener("skipqueue_supervisors")
    delayed_task = jobs.noop.using(run_after=timedelta(seconds=delay))
    unique_delayed_task = jobs.noop.using(run_after=timedelta(seconds=delay), unique_key="k")
    running_job = make_job("running")
    for schedule_job in (
        delayed_task.defer,
        lambda: delayed_task.defer_many([()] * 3),
        unique_delayed_task.defer,
        lambda: store.settle([Settlement(*lease_of(running_job), Outcome("scheduled", delay=delay))]),
    ):
        schedule_job()
        assert listener.queues_named() == queues_named
    defer_noop("a")
    assert listener.queues_named() == []
    listener.connection.close()


class TestInOneMessage:
    """Outside of a transaction the INSERT, its commit and the NOTIFY are one round trip."""

    def test_a_single_job_is_inserted_and_notified_in_one_statement(self, listener: NotificationListener) -> None:
        with CaptureQueriesContext(connection) as queries:
            defer_noop("a")
        assert len(queries) == 1
        assert listener.payloads() == ["a"]

    @pytest.mark.parametrize("options", [{"unique_key": "k"}, {"run_after": timedelta(hours=1)}])
    def test_a_job_that_may_not_be_queued_is_notified_in_a_statement_of_its_own(
        self, listener: NotificationListener, options: dict[str, Any]
    ) -> None:
        jobs.noop.using(queue_name="a", **options).defer()
        jobs.noop.using(queue_name="a", **options).defer()
        expected_count = 1 if "unique_key" in options else 0  # the second job is a duplicate; jobs due later need none
        assert len(listener.queues_named()) == expected_count

    def test_an_insert_that_fails_leaves_the_connection_usable(self, listener: NotificationListener) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE skipqueue_job ADD CONSTRAINT no_b CHECK (queue_name <> 'b') NOT VALID")
        try:
            with pytest.raises(IntegrityError):
                defer_noop("b")
            assert connection.connection.info.transaction_status == TransactionStatus.IDLE
            defer_noop("a")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT no_b")
        assert listener.queues_named() == ["a"]
        assert Job.objects.count() == 1

    def test_a_failed_commit_is_raised_and_sends_no_notification(self, listener: NotificationListener) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;"
                "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON skipqueue_job DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        try:
            with pytest.raises(DatabaseError, match="refused"):
                defer_noop("a")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP FUNCTION refuse CASCADE")
        defer_noop("b")
        assert listener.queues_named() == ["b"]
        assert Job.objects.count() == 1

    def test_a_notify_that_fails_after_the_commit_is_only_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        failing_statement = ENQUEUE_AND_NOTIFY.replace("pg_notify('skipqueue'", "pg_notify(''")
        monkeypatch.setattr(enqueue, "ENQUEUE_AND_NOTIFY", failing_statement)
        job = jobs.noop.using(queue_name="a").defer()
        assert Job.objects.get().pk == job.pk
        assert "channel name cannot be empty" in caplog.text
        assert connection.connection.info.transaction_status == TransactionStatus.IDLE

    def test_after_a_failed_notify_in_another_session_of_a_pooler_the_error_is_raised(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pooler has moved the client to another session, which does not know whether the job is committed."""
        failing_statement = ENQUEUE_AND_NOTIFY.replace("pg_notify('skipqueue'", "pg_notify(''")
        monkeypatch.setattr(enqueue, "ENQUEUE_AND_NOTIFY", failing_statement)
        monkeypatch.setattr(enqueue, "INSERTED", INSERTED.replace("skipqueue.inserted", "skipqueue.other"))
        with pytest.raises(DatabaseError, match="channel name cannot be empty"):
            defer_noop("a")

    def test_a_single_enqueue_sends_an_event(self) -> None:
        events: list[Any] = []
        new_job = Store("default", send=events.append).enqueue(JobSpec("a.task", "a"), EncodedCall("[]", "{}"))
        assert new_job
        assert events == [JobsDeferred("default", "a.task", "a", [new_job.id])]
        assert Job.objects.values_list("enqueued_at", "run_after").get() == (new_job.enqueued_at, new_job.run_after)

    @pytest.mark.parametrize(
        "failure", ["refused at once", "by a wrapper", "before the commit", "the connection ended"]
    )
    def test_an_error_before_the_commit_never_returns_an_earlier_job(
        self, failure: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        defer_noop("earlier")
        statement = ENQUEUE_AND_NOTIFY
        if failure == "refused at once":
            statement = f"SELECT 1/0; {statement}"
        elif failure == "before the commit":
            statement = statement.replace("COMMIT;", "SELECT 1/0; COMMIT;")
        elif failure == "the connection ended":
            statement = statement.replace("COMMIT;", "SELECT pg_terminate_backend(pg_backend_pid()); COMMIT;")
        monkeypatch.setattr(enqueue, "ENQUEUE_AND_NOTIFY", statement)
        with contextlib.ExitStack() as wrapped:
            if failure == "by a wrapper":
                wrapped.enter_context(connection.execute_wrapper(refuse_job))
            with pytest.raises(DatabaseError):
                defer_noop("a")
        if failure == "the connection ended":
            connection.close()
        assert list(Job.objects.values_list("queue_name", flat=True)) == ["earlier"]
        assert connection.connection.info.transaction_status == TransactionStatus.IDLE

    def test_a_lost_connection_raises_djangos_operational_error(self) -> None:
        connection.ensure_connection()
        with connect_to() as other_connection:
            other_connection.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
        try:
            with pytest.raises(OperationalError, match="terminating connection"):
                defer_noop("a")
        finally:
            connection.close()

    def test_an_interrupt_leaves_no_transaction_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow_statement = ENQUEUE_AND_NOTIFY.replace("COMMIT;", "SELECT pg_sleep(60); COMMIT;")
        monkeypatch.setattr(enqueue, "ENQUEUE_AND_NOTIFY", slow_statement)
        original_handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                defer_noop("a")
        finally:
            signal.signal(signal.SIGALRM, original_handler)
        assert connection.connection.info.transaction_status == TransactionStatus.IDLE
        assert not Job.objects.exists()


def refuse_job(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any) -> Any:
    """An execute wrapper, as a project may have it, that sends a statement or raises."""
    if "INSERT INTO skipqueue_job" in statement:
        raise DatabaseError("no more jobs")
    return execute(statement, params, many, context)


class TestInsertAndNotifyInTwoStatements:
    """Cases in which the INSERT and the NOTIFY cannot be sent as one message."""

    def test_a_transaction_begun_without_django_is_not_committed(self) -> None:
        connection.ensure_connection()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            defer_noop("a")
            cursor.execute("ROLLBACK")
        with contextlib.suppress(ZeroDivisionError), connection.connection.transaction():
            defer_noop("a")
            raise ZeroDivisionError
        assert not Job.objects.exists()

    def test_in_a_pipeline_the_notify_is_a_statement_of_its_own(self, listener: NotificationListener) -> None:
        connection.ensure_connection()
        with connection.connection.pipeline():
            defer_noop("a")
        assert listener.queues_named() == ["a"]

    @pytest.mark.parametrize("option", [{"cursor_factory": psycopg.Cursor}, {"server_side_binding": True}])
    def test_with_parameters_bound_on_the_server_the_notify_is_a_statement_of_its_own(
        self, listener: NotificationListener, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connection.close()
        settings = connection.settings_dict
        monkeypatch.setitem(settings, "OPTIONS", settings["OPTIONS"] | option)
        try:
            defer_noop("a")
            defer_noop("b")
        finally:
            connection.close()
        assert listener.queues_named() == ["a", "b"]
        assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("mail", ("mail", 1)), ("mail,12", ("mail", 12)), ("", ("", 1)), (",probe", ("", 1)), ("mail,x", ("mail", 1)),
        ("mail,-5", ("mail", 1)), ("mail,0", ("mail", 1)), ("mail,3,high", ("mail", 1)), ("mail,", ("mail", 1)),
        (f"mail,{'9' * 5000}", ("mail", 1)), ("mail,\u0663", ("mail", 1)), ("q" * 7999, ("", 1)),
    ],
)  # fmt: skip
def test_any_payload_is_read_as_a_queue_and_a_number(payload: str, expected: tuple[str, int]) -> None:
    assert jobs_in(payload) == expected


@pytest.mark.parametrize(
    ("later", "queues_for_workers", "payloads_for_supervisors"), [(False, ["a"], []), (True, [], [GATES_PAYLOAD])]
)
def test_jobs_that_are_put_back_and_due_later_notify_supervisors_instead_of_workers(
    listener: NotificationListener, later: bool, queues_for_workers: list[str], payloads_for_supervisors: list[str]
) -> None:
    defer_noop("a")
    (job,) = store.claim(queue_names=["a"], limit=1, worker_id="w")
    listener.queues_named()  # reads the notification of the new job
    supervisor_listener = NotificationListener("skipqueue_supervisors")
    store.release([job.ref], later=later)
    assert listener.queues_named() == queues_for_workers
    assert supervisor_listener.payloads() == payloads_for_supervisors
    supervisor_listener.connection.close()
