"""Transactions that stay open: no service of the history waits for them, and no process waits for a count."""

from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.parts.history.rollups import count_enqueued, roll_up_depths, start_counting
from django_skipqueue.queue.observe import queues_now

from ...app.rows import make_job
from ...app.sessions import Session
from ...queue import test_open_transactions as core_tests
from ...queue.test_open_transactions import ACTIONS, pytestmark, short_lock_timeout, store

__all__ = ["pytestmark", "short_lock_timeout"]


@pytest.mark.parametrize("action", [*ACTIONS.values(), lambda: count_new_jobs()], ids=[*ACTIONS, "count new jobs"])
def test_counting_jobs_does_not_wait_for_open_transactions(
    session: Callable[[], Session], short_lock_timeout: None, caplog: pytest.LogCaptureFixture, action: Any
) -> None:
    for status in ("queued", "scheduled", "running", "completed", "failed"):
        make_job(status)
    start_counting(store)
    other_session = session()
    other_session.begin()
    other_session(action)
    make_job()
    count_new_jobs()
    roll_up_depths(store, queues_now(store))
    assert "lock timeout" not in caplog.text
    other_session.rollback()


def test_no_process_waits_for_an_open_transaction_that_counts_jobs(
    session: Callable[[], Session], short_lock_timeout: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    start_counting(store)
    core_tests.test_no_open_transaction_of_an_operator_blocks_workers_or_supervisors(
        session, short_lock_timeout, settings, caplog, count_new_jobs
    )


def count_new_jobs() -> None:
    count_enqueued(store, interval=0)
