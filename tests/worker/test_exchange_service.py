"""`ExchangeService` settles and claims in one exchange, or after a failure in two exchanges."""

from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef
from django_skipqueue.worker.claiming import ClaimPolicy, Plan
from django_skipqueue.worker.exchange import ExchangeService
from django_skipqueue.worker.in_exchange import InExchange
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.outcomes import SlowOutcome
from django_skipqueue.worker.protocol import SharedCounts

JOB = ClaimedJob(
    id=1, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
    priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
)  # fmt: skip


class RecordingStore(Store):
    """A store that sends no statements, and records for each exchange the numbers of outcomes and of jobs to claim."""

    def __init__(self) -> None:
        super().__init__("default")
        self.outcomes_and_claims: list[tuple[int, int]] = []

    def locked(self, leases: Iterable[LeaseRef]) -> set[int]:
        return set()

    def exchange(self, settlements: Iterable[Settlement], **options: Any) -> ExchangeResult:
        settled = [(settlement.job_id, settlement.lease, None) for settlement in settlements]
        self.outcomes_and_claims.append((len(settled), options["limit"]))
        return ExchangeResult(settled, [], options["queue_names"], 0.0)


def test_a_slow_outcome_is_sent_in_an_exchange_that_claims_no_jobs() -> None:
    store = RecordingStore()
    service = ExchangeService(
        MagicMock(take_finished=MagicMock(return_value=[])),
        ClaimPolicy(WorkerOptions(name="w", database="default", queue_names=("default",))),
        id="w",
        store=store,
        control=MagicMock(is_broken=False),
        dispatcher=MagicMock(),
        shared=SharedCounts(),
        in_exchange=InExchange(),
        settle_services=(),
        write_notes=MagicMock(),
    )
    service.pending.slow.append(
        SlowOutcome(Attempt(JOB, COMPLETED, started=1.0, ended=2.0, worker="w"), next_try=float("-inf"))
    )
    for _ in range(2):
        service.exchange(Plan(0.0, settles=True, claims=5))
    assert store.outcomes_and_claims == [(1, 0), (0, 5)]
