"""A page whose query takes too long says so, instead of hanging."""

from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from django_skipqueue.admin.ui import time_limit

from ...app.rows import make_job
from ...app.sessions import Session
from ..conftest import LIST, QUEUES, WORKERS

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = [LIST, f"{LIST}?status=queued&q=x", f"{LIST}dashboard/", QUEUES, WORKERS]


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody holds a lock on the tables. Without a limit, the server itself would end the wait after a while."""
    monkeypatch.setattr(time_limit, "QUERY_SECONDS", 0.2)
    execute("SET statement_timeout = '3s'")
    session = Session()
    session.begin()
    session(execute, "LOCK TABLE skipqueue_job, skipqueue_worker, skipqueue_queue IN ACCESS EXCLUSIVE MODE")
    yield
    session.rollback()
    session.close()
    execute("RESET statement_timeout")


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_waits_for_a_lock_says_what_to_do(operator: Client, page: str) -> None:
    response = operator.get(page)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "10"
    assert "ETag" not in response.headers
    for expected in ("cancelled after 200 ms", "skipqueue doctor", "Try again", "VACUUM FULL"):
        assert expected in response.text
    assert ("remove a filter" in response.text) == ("?" in page)


@pytest.mark.usefixtures("locked")
def test_the_connection_can_be_used_afterwards(operator: Client) -> None:
    operator.get(LIST)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("3s",)


def test_the_limit_ends_with_the_page(operator: Client) -> None:
    assert operator.get(LIST).status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_another_error_is_not_hidden(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("django_skipqueue.admin.queues.queue_admin.queue_states", fail)
    with pytest.raises(OperationalError, match="the connection is lost"):
        operator.get(QUEUES)


def test_an_action_has_its_own_time(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A POST that changes many jobs is not cancelled by the limit of a page."""
    limited: list[float] = []
    monkeypatch.setattr("django_skipqueue.store.Store.limit_statements", lambda self, seconds: limited.append(seconds))
    job = make_job("failed")
    with transaction.atomic():
        operator.post(LIST, {"action": "retry_selected", "_selected_action": [job.pk]})
    assert limited == []
    operator.get(LIST)
    assert limited == [time_limit.QUERY_SECONDS]
