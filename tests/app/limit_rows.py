"""Makes jobs with the key of a limit or a rate in any status, without the functions under test."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django_skipqueue.models import Job
from django_skipqueue.parts.limits.claim import AheadWish
from django_skipqueue.parts.limits.exchange import announced, limit_statements
from django_skipqueue.queue.parameters import Admitted, ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import Settlement

from .rows import make_job

KINDS = {"concurrency": "limit", "sequence": "sequence", "halting": "sequence"}


def make_keyed(key: str, status: str = "blocked", *, kind: str = "concurrency", **fields: Any) -> Job:
    """Make a job with this key of a limit."""
    capacity = fields.pop("capacity", 1)
    return make_job(status, limit_key=key, limit_kind=kind, capacity=capacity, **fields)


def make_limited(key: str, *, waiting: int = 1, held: int = 1, minutes: float = 5.0, **fields: Any) -> list[Job]:
    """Make `held` jobs that hold permits, and `waiting` jobs, the first of which has waited for `minutes` minutes."""
    fields = {"capacity": max(held, 1)} | fields
    for _ in range(held):
        make_keyed(key, "running", **fields)
    return [make_keyed(key, run_after=timedelta(minutes=number - minutes), **fields) for number in range(waiting)]


def make_halted(key: str, *, minutes: float = 5.0, waiting: int = 1, **fields: Any) -> Job:
    """Make a sequence with a job that failed `minutes` minutes ago, and `waiting` jobs. Returns the failed job."""
    fields = {"kind": "halting"} | fields
    failed_job = make_keyed(key, "failed", finished_at=timedelta(minutes=-minutes), **fields)
    for _ in range(waiting):
        make_keyed(key, run_after=timedelta(minutes=-minutes / 2), **fields)
    return failed_job


def make_rated(key: str, *, waiting: int = 1, minutes: float = 5.0, **fields: Any) -> list[Job]:
    """Make jobs that wait for a token, the first since `minutes` minutes ago. The default rate is one job a minute."""
    values: dict[str, Any] = {"rate_interval": 60.0, "rate_burst": 1, "rate_key": key, **fields}
    return [make_job("blocked", run_after=timedelta(minutes=number - minutes), **values) for number in range(waiting)]


def exchange(
    store: Store,
    settlements: Iterable[Settlement],
    *,
    queue_names: Sequence[str],
    limit: int,
    limited: Sequence[int] = (),
    keys: Sequence[str] = (),
    ahead: Sequence[AheadWish] = (),
    **options: Any,
) -> tuple[ExchangeResult, Admitted]:
    """Settle, admit and claim in one round trip, as the worker `w` does."""
    limits = limit_statements(limited, keys, ahead, claims=bool(limit and queue_names), worker_id="w")
    options |= {"between": limits.statements, "claim": limits.claim, "worker_id": "w"}
    result = store.exchange(settlements, queue_names=queue_names, limit=limit, **options)
    return result, announced(store, result)
