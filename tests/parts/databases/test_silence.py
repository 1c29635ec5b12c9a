"""A server that hangs with open connections: jobs wait for it only until the process is sure that it hangs."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import environ
import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction

from django_skipqueue import job, unique_by
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.queue import silence

from ...app import sessions
from ...app.jobs import noop
from ...app.waiting import wait_until
from ...chaos.cluster import Cluster
from ...harness.proxy import Proxy
from ...harness.reached import reached_at

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

SetPlacement = Callable[..., None]
Server = Cluster | Proxy


@pytest.fixture(autouse=True)
def _placement_in_turn(set_placement: SetPlacement, monkeypatch: pytest.MonkeyPatch) -> None:
    set_placement("spread")
    monkeypatch.setattr(silence, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(silence, "CONNECT_TIMEOUT", 2)  # psycopg has no shorter timeout


@pytest.fixture
def pausable_server() -> Iterator[Cluster]:
    """A second server for the database `other`, on a Unix socket, that a test can pause by SIGSTOP."""
    # not pytest's folder, which the user of the server may not read
    with TemporaryDirectory(prefix="skipqueue-") as folder:
        data_folder = Path(folder) / "postgres"
        data_folder.mkdir()
        cluster = Cluster(data_folder)
        try:
            cluster.create()
            with reached_at("other", environ.Env.db_url_config(cluster.url)):
                call_command("migrate", database="other", verbosity=0)
                yield cluster
                cluster.resume()
        finally:
            cluster.stop()


@pytest.fixture
def stallable_proxy() -> Iterator[Proxy]:
    """A TCP proxy before the database `other` that forwards nothing more and closes nothing."""
    proxy = Proxy()
    with reached_at("other", proxy.settings):
        yield proxy
        proxy.close()


@pytest.fixture(params=["pausable_server", "stallable_proxy"], ids=["stopped", "stalled"])
def server(request: pytest.FixtureRequest) -> Server:
    chosen_server: Server = request.getfixturevalue(request.param)
    return chosen_server


def hang(server: Server) -> None:
    server.pause() if isinstance(server, Cluster) else server.stall()


def resume(server: Server) -> None:
    server.resume() if isinstance(server, Cluster) else server.flow()
    silence.avoided_until.clear()


def defer_and_count(count: int) -> Counter[str | None]:
    """Defer `count` jobs without a key, and count them by database; `error` counts jobs that could not be deferred."""
    return Counter(defer_job() for _ in range(count))


def defer_job() -> str | None:
    try:
        return noop.defer()._state.db
    except OperationalError:
        return "error"


def test_a_server_that_hangs_gets_no_job_over_an_idle_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert defer_and_count(2) == {"default": 1, "other": 1}
    hang(server)
    monkeypatch.setattr(silence, "IDLE_SESSION_SECONDS", -1.0)  # every connection counts as idle
    assert defer_and_count(6) == {"default": 6}
    assert noop.defer_many([{}] * 4).databases == ["default"] * 4
    resume(server)
    assert defer_and_count(4) == {"default": 2, "other": 2}


def test_a_call_to_a_hanging_server_raises_and_later_calls_avoid_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "IDLE_SESSION_SECONDS", 3_600.0)
    assert defer_and_count(2) == {"default": 1, "other": 1}
    hang(server)
    assert defer_and_count(2) == {"default": 1, "error": 1}
    assert defer_and_count(6) == {"default": 6}
    resume(server)
    assert defer_and_count(4) == {"default": 2, "other": 2}


def test_defer_many_and_a_job_with_a_key_raise_on_a_hanging_server(
    stallable_proxy: Proxy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "IDLE_SESSION_SECONDS", 3_600.0)
    task: Any = job(unique=unique_by("number"))(numbered)
    number_in_other = next(number for number in range(99) if task.defer(number)._state.db == "other")
    stallable_proxy.stall()
    with pytest.raises(OperationalError, match="sends nothing any more"):
        task.using(max_attempts=1).defer(number_in_other)
    with pytest.raises(OperationalError, match="timeout"):
        task.defer(number_in_other)
    stallable_proxy.flow()
    defer_and_count(2)
    stallable_proxy.stall()
    with pytest.raises(OperationalError, match="sends nothing any more"):
        noop.defer_many([{}] * 4)


def numbered(number: int) -> None:
    """The function of a task with a unique key."""


def test_an_open_transaction_on_a_hanging_server_ends_with_an_error(stallable_proxy: Proxy) -> None:
    def defer_in_a_transaction() -> None:
        with transaction.atomic(using="other"):
            noop.defer()
            stallable_proxy.stall()
            noop.defer()

    with pytest.raises(OperationalError, match="sends nothing any more"):
        defer_in_a_transaction()
    stallable_proxy.flow()
    assert not Job.objects.using("other").exists()


def test_a_job_waits_for_a_server_on_which_a_lock_is_held(
    set_placement: SetPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server responds to a new session, so it counts as reachable."""
    set_placement("spread", DATABASES=("other",))
    answers: list[bool] = []
    monkeypatch.setattr(silence, "SILENT_SECONDS", 0.1)
    answers_new_session = silence.answers_new_session

    def note_answer(*arguments: Any) -> bool:
        monkeypatch.setattr(silence, "SILENT_SECONDS", 30.0)  # long enough for a busy machine
        answers.append(answers_new_session(*arguments))
        monkeypatch.setattr(silence, "SILENT_SECONDS", 0.1)
        return answers[-1]

    monkeypatch.setattr(silence, "answers_new_session", note_answer)
    placed_in: list[str | None] = []

    def defer() -> None:
        placed_in.append(defer_job())
        connections["other"].close()

    with sessions.connect(alias="other") as locking_session, locking_session.transaction():
        locking_session.execute("LOCK TABLE skipqueue_job")
        thread = threading.Thread(target=defer)
        thread.start()
        wait_until(lambda: len(answers) >= 2, "the process has checked twice whether the server responds")
        assert placed_in == []
    thread.join()
    assert placed_in == ["other"]
    assert all(answers)


def test_a_recently_used_connection_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "IDLE_SESSION_SECONDS", 3_600.0)
    assert defer_and_count(2) == {"default": 1, "other": 1}
    monkeypatch.setattr(
        silence, "session_answers", lambda session: pytest.fail("the process has checked the connection")
    )
    assert defer_and_count(4) == {"default": 2, "other": 2}


def test_a_connection_in_a_pipeline_or_a_transaction_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "IDLE_SESSION_SECONDS", -1.0)
    connections["other"].ensure_connection()
    session: psycopg.Connection[Any] = connections["other"].connection
    with session.pipeline():
        assert silence.answers(connections["other"])
    connections["other"].set_autocommit(False)
    try:
        assert silence.answers(connections["other"])
    finally:
        connections["other"].set_autocommit(True)
    assert silence.answers(connections["other"])
