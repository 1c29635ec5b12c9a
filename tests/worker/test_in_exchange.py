"""`InExchange` without optional parts such as limits: exchanges are minimal, and each job begins at once."""

from typing import Any

import pytest

from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import NEVER, ClaimedJob
from django_skipqueue.worker import in_exchange
from django_skipqueue.worker.in_exchange import PartStatements, make_in_exchange

WITH_PERMIT: dict[str, Any] = {"holds_permit": True, "permit_key": "k"}
JOB = ClaimedJob(
    id=1, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
    priority=0, run_after=0.0, locked_at=0.0, metadata="{}", **WITH_PERMIT,
)  # fmt: skip


def test_without_parts_an_exchange_has_no_further_statements_and_jobs_begin_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_exchange, "installed_parts", tuple)
    exchange_without_parts = make_in_exchange(Store("default"), "w", claims_ahead=True)
    assert exchange_without_parts.statements_of_parts([], has_room=True, claims=True) == PartStatements()
    assert exchange_without_parts.claimed_ahead(ExchangeResult([], [], [], 0.0)) == []
    assert exchange_without_parts.due_at == NEVER
    begin_order = exchange_without_parts.begin_order
    assert begin_order.enter(JOB) == [JOB], "the job begins at once"
    assert begin_order.follow(JOB) is None
    assert begin_order.withdraw() == []
    assert not begin_order.has_waiting
