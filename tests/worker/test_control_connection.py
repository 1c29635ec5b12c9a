"""`ControlConnection`: the connection of a control loop, which is opened again whenever it breaks."""

import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.db import Error, OperationalError, connection, connections, transaction
from psycopg import IsolationLevel

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall, JobSpec
from django_skipqueue.worker import control_connection as module
from django_skipqueue.worker.control_connection import LONGEST_REOPEN_DELAY, SLOW_EXCHANGE_SECONDS, ControlConnection

from ..app import jobs
from ..app.sessions import connect as connect_to
from ..app.waiting import DEADLINE, collect, wait_until
from ..harness.threads import terminate

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run_in_thread() -> Callable[..., None]:
    """Runs a function in a thread, because the control connection replaces Django's connection of its thread."""

    def run(function: Callable[[], object]) -> None:
        failure: list[BaseException] = []

        def run_and_catch() -> None:
            try:
                function()
            except BaseException as error:
                failure.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=run_and_catch)
        thread.start()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        if failure:
            raise failure[0]

    return run


def pid_of_connection() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_statements_of_its_thread_use_the_control_connection(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        assert control.fileno() is None
        with control.handling_errors():
            Job.objects.count()
        assert connections["default"] is control.wrapper
        assert control.fileno() == control.wrapper.connection.fileno()
        assert connections["default"].get_autocommit()

    run_in_thread(check)


def test_the_control_connection_does_not_use_the_projects_pool(
    run_in_thread: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)

    def check() -> None:
        ControlConnection(Store("default"), who="w")
        assert "pool" not in connections["default"].settings_dict["OPTIONS"]
        Job.objects.count()
        assert connections["default"].get_autocommit()

    run_in_thread(check)
    assert connection.settings_dict["OPTIONS"]["pool"] is True


def test_the_control_connection_is_read_committed_whatever_the_project_sets(
    run_in_thread: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", IsolationLevel.SERIALIZABLE)

    def check() -> None:
        ControlConnection(Store("default"), who="w")
        with transaction.atomic(), connections["default"].cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)

    run_in_thread(check)


def test_a_connection_that_broke_is_closed_and_opened_again(
    run_in_thread: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")

    def check() -> None:
        control = ControlConnection(Store("default"), who="worker w/1")
        with control.handling_errors():
            first_pid = pid_of_connection()
        run_in_thread(lambda: terminate([first_pid]))
        with control.handling_errors():
            Job.objects.count()
        assert control.retry_at > time.monotonic()
        assert control.fileno() is None
        with control.handling_errors():
            assert pid_of_connection() != first_pid
        assert control.retry_at == 0

    run_in_thread(check)
    assert 'database lost who="worker w/1" retry_in=' in caplog.text
    assert 'database back who="worker w/1"' in caplog.text


def test_the_delays_between_attempts_to_connect_grow_up_to_a_maximum(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        delays: list[float] = []
        for _ in range(12):
            with control.handling_errors():
                raise OperationalError("no server")
            delays.append(control.retry_at - time.monotonic())
        assert 0 < delays[0] <= 0.5
        assert all(later > 0.99 * earlier for earlier, later in pairwise(delays[:5]))
        assert all(LONGEST_REOPEN_DELAY / 2 <= delay <= LONGEST_REOPEN_DELAY for delay in delays[6:])
        with control.handling_errors():
            Job.objects.count()
        with control.handling_errors():
            raise OperationalError("no server")
        assert control.retry_at - time.monotonic() <= 0.5

    run_in_thread(check)


def test_errors_that_are_not_of_the_database_are_raised(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        with pytest.raises(ZeroDivisionError), control.handling_errors():
            raise ZeroDivisionError

    run_in_thread(check)


def test_notifications_arrive_between_statements_and_with_statements(run_in_thread: Callable[..., None]) -> None:
    def defer(queue_name: str) -> None:
        run_in_thread(lambda: jobs.noop.using(queue_name=queue_name).defer())

    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        control.listen()
        assert control.notified() == []
        defer("a")
        defer("b")
        assert set(collect(control.notified, 2)) == {"a", "b"}
        defer("c")
        wait_until(lambda: Job.objects.count() == 3 and control.payloads, "a statement brought the notification along")
        assert control.notified() == ["c"]
        assert control.notified() == []

    run_in_thread(check)


def test_a_new_connection_listens_after_listen_is_called(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        for _ in range(2):
            control.listen()
            control.listen()
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT * FROM pg_listening_channels()")
                assert cursor.fetchall() == [("skipqueue",)]
            control.close()

    run_in_thread(check)


def test_reading_notifications_from_a_lost_server_raises_a_database_error(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        control.listen()
        pid = pid_of_connection()
        run_in_thread(lambda: terminate([pid]))
        with pytest.raises(Error):
            wait_until(lambda: control.notified())

    run_in_thread(check)


def test_a_longer_time_for_statements_is_passed_on(run_in_thread: Callable[..., None]) -> None:
    seconds_allowed: list[float] = []

    def check() -> None:
        control = ControlConnection(Store("default"), who="w", before_statements=seconds_allowed.append)
        with control.handling_errors():
            control.allow(21.0)

    run_in_thread(check)
    assert seconds_allowed[1:] == [21.0]  # the first entry is the usual time


def test_a_connection_to_a_read_only_server_is_closed(run_in_thread: Callable[..., None]) -> None:
    """After a failover the server is a standby, and only another connection leads to the new primary."""

    def check() -> None:
        store = Store("default")
        control = ControlConnection(store, who="w")
        refused_errors: list[Error] = []
        with control.handling_errors(), connections["default"].cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        with control.handling_errors(refused=refused_errors.append):
            store.delete_workers(["w"])
        assert refused_errors == []
        assert control.is_broken
        with control.handling_errors(refused=refused_errors.append):
            store.delete_workers(["w"])
        assert refused_errors == []
        assert not control.is_broken

    run_in_thread(check)


def test_an_alarm_that_a_task_sets_does_not_disable_the_statement_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIME", 0.3)
    connections_before, handler_before = connections["default"], signal.getsignal(signal.SIGALRM)
    control = ControlConnection(Store("default"), who="w")
    try:
        with control.handling_errors():
            pid_of_connection()
        with control.handling_errors(), connections["default"].cursor() as cursor:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # as a task in another thread does
            cursor.execute("SELECT pg_sleep(5)")
        assert control.timed_out
        assert control.is_broken
    finally:
        control.close()
        connections["default"] = connections_before
        signal.signal(signal.SIGALRM, handler_before)


def send_probe_and_check(control: ControlConnection) -> None:
    """Have the control connection listen, and check whether notifications of other sessions arrive."""
    for _ in range(2):
        with control.handling_errors():
            control.listen()
        assert not control.is_broken


def test_a_probe_whose_connection_was_closed_is_sent_again(
    run_in_thread: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        send_probe_and_check(control)
        control.close()
        monkeypatch.setattr(module, "ECHO_TIME", -1.0)  # any answer would come too late
        send_probe_and_check(control)
        assert "notifications unheard" not in caplog.text

    run_in_thread(check)


def test_a_probe_that_cannot_be_sent_says_nothing_about_notifications(
    run_in_thread: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("too many connections")

    monkeypatch.setattr(module, "echo", refuse)
    monkeypatch.setattr(module, "ECHO_TIME", -1.0)

    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        send_probe_and_check(control)
        send_probe_and_check(control)
        assert "notifications unheard" not in caplog.text

    run_in_thread(check)


def claim_and_count_prepared(control: ControlConnection) -> str | None:
    """Claim, and return the number of the session's prepared statements as a string, or None after an error."""
    with control.handling_errors():
        Store("default").exchange([], queue_names=["a"], limit=1, worker_id="w")
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements")
            return str(cursor.fetchone()[0])
    return None


def test_a_session_prepares_the_statements_of_exchanges_and_others_do_not(run_in_thread: Callable[..., None]) -> None:
    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        assert [claim_and_count_prepared(control) for _ in range(7)] == ["0"] * 7
        with control.handling_errors():
            control.prepare_statements()
            control.prepare_statements()
        assert claim_and_count_prepared(control) == "1"
        with connections["default"].cursor() as cursor:
            cursor.execute("SHOW plan_cache_mode")
            assert cursor.fetchone() == ("force_generic_plan",)
        control.close()
        assert claim_and_count_prepared(control) == "0"

    run_in_thread(check)


def test_after_a_prepared_statement_was_deleted_none_is_prepared_again(run_in_thread: Callable[..., None]) -> None:
    """A pooler that shares sessions deletes prepared statements."""

    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        with control.handling_errors():
            control.prepare_statements()
        assert claim_and_count_prepared(control) == "1"
        with connections["default"].cursor() as cursor:
            cursor.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # within DO, so that psycopg does not notice
        assert claim_and_count_prepared(control) is None
        assert control.is_broken
        with control.handling_errors():
            control.prepare_statements()
        assert claim_and_count_prepared(control) == "0"
        assert not control.is_broken

    run_in_thread(check)


def test_a_missing_prepared_statement_does_not_count_as_a_refusal(run_in_thread: Callable[..., None]) -> None:
    """The statement is correct. A pooler has given the session to another client."""

    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        refused_errors: list[Error] = []
        with control.handling_errors(refused=refused_errors.append), connections["default"].cursor() as cursor:
            cursor.execute("EXECUTE gone")
        assert control.is_broken
        assert not refused_errors

    run_in_thread(check)


def test_plans_for_a_small_table_are_made_again_after_a_slow_exchange(
    run_in_thread: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds_kept = 600.0
    monkeypatch.setattr(module, "PLANS_KEPT", seconds_kept)

    def check() -> None:
        control = ControlConnection(Store("default"), who="w")
        with connect_to() as other_connection:
            other_connection.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
            other_connection.execute("VACUUM ANALYZE skipqueue_job")
        try:
            with control.handling_errors():
                control.prepare_statements()
            assert claim_reads_whole_table(control), "the plan was made for an empty table"
            make_many_jobs()
            assert claim_reads_whole_table(control)  # by the plan for a small table
            control.note_exchange(SLOW_EXCHANGE_SECONDS / 2)
            assert claim_reads_whole_table(control), "a quick exchange keeps the plan"
            control.note_exchange(SLOW_EXCHANGE_SECONDS * 2)
            assert claim_reads_whole_table(control), "plans that are a moment old are kept"
            control.planned_at -= 2 * seconds_kept  # as if the plans were old
            control.note_exchange(SLOW_EXCHANGE_SECONDS * 2)
            assert not claim_reads_whole_table(control)
        finally:
            with connect_to() as other_connection:
                other_connection.execute("ALTER TABLE skipqueue_job RESET (autovacuum_enabled)")

    run_in_thread(check)


def make_many_jobs() -> None:
    """Insert many jobs of another queue. A plan made for a table of this size reads only some of these jobs."""
    spec = JobSpec("a.task", "other", priority=0, max_attempts=1)
    Store("default").enqueue_many(spec, [EncodedCall("[]", "{}")] * 20_000)


def claim_reads_whole_table(control: ControlConnection) -> bool:
    """Whether an exchange reads the whole table."""
    scans_before = count_sequential_scans()
    assert claim_and_count_prepared(control) == "1"
    return count_sequential_scans() > scans_before


def count_sequential_scans() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
    with connect_to() as observer:
        [(count,)] = observer.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'skipqueue_job'")
        return int(count)
