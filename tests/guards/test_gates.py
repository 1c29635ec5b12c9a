"""If PostgreSQL refuses the statement of one gate (a condition for jobs to be queued), other gates admit their jobs."""

import pytest
from django.db import DataError, connection

from django_skipqueue.queue.gates import TIME_GATE
from django_skipqueue.queue.store import Store

from ..app.rows import make_job, state

pytestmark = pytest.mark.django_db(transaction=True)


def divide_by_zero(*_: object, **__: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def test_a_gate_that_is_refused_leaves_the_gates_after_it_to_admit(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting_job = make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    monkeypatch.setattr(TIME_GATE, "admit", divide_by_zero)
    with pytest.raises(DataError, match="division by zero"):
        Store("default").admit()
    assert state(waiting_job)["status"] == "queued"
