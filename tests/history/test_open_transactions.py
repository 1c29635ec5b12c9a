"""Transactions that stay open: no service of the history waits for them, and no process waits for a count."""

from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.parts.history.rollups import count_enqueued, roll_up_depths, start_counting
from django_skipqueue.queue.observe import queues_now

from ..app.rows import make_job
from ..app.sessions import Session
from ..store import test_open_transactions as of_jobs
from ..store.test_open_transactions import ACTIONS, impatient, pytestmark, store

__all__ = ["impatient", "pytestmark"]


@pytest.mark.parametrize("action", [*ACTIONS.values(), lambda: count()], ids=[*ACTIONS, "count"])
def test_nothing_that_is_left_open_keeps_the_counting_waiting(
    session: Callable[[], Session], impatient: None, caplog: pytest.LogCaptureFixture, action: Any
) -> None:
    for status in ("queued", "scheduled", "running", "completed", "failed"):
        make_job(status)
    start_counting(store)
    other = session()
    other.begin()
    other(action)
    make_job()
    count()
    roll_up_depths(store, queues_now(store))
    assert "lock timeout" not in caplog.text
    other.rollback()


def test_a_count_that_is_left_open_keeps_no_process_waiting(
    session: Callable[[], Session], impatient: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    start_counting(store)
    of_jobs.test_nothing_that_an_operator_leaves_open_keeps_a_process_waiting(
        session, impatient, settings, caplog, count
    )


def count() -> None:
    count_enqueued(store, interval=0)
