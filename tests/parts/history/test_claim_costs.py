"""What a claim reads: a supervisor measures it without a lock, and the doctor shows it."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import F

from django_skipqueue.models import Job, RollUp
from django_skipqueue.parts.history import claim_costs, rules
from django_skipqueue.parts.history.claim_costs import CLAIM_LIMIT, ClaimCost, measure_claim
from django_skipqueue.parts.history.rollups import AttemptCounts, SampleDepths, roll_up, roll_up_depths, rows_of_counts
from django_skipqueue.queue.observe import queues_now
from django_skipqueue.queue.store import Store

from ...app.rows import make_job
from ...app.sessions import Session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("new_tables")]

store = Store("default")


def add_queued_jobs(queue_name: str, number: int) -> None:
    Job.objects.bulk_create([Job(task="t", queue_name=queue_name, status="queued") for _ in range(number)])
    execute("ANALYZE skipqueue_job")


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def write_rollup(queue_name: str) -> None:
    """Write a roll-up of the queue, because the rule about claims reads only queues with roll-ups."""
    this_minute = int(time.time() // 60)
    roll_up(store, list(rows_of_counts({(this_minute, queue_name, "t"): AttemptCounts(completed=1)})), [])


def test_a_claim_of_a_deep_queue_reads_only_the_rows_that_it_takes() -> None:
    add_queued_jobs("mail", 3_000)
    cost = measure_claim(store, "mail")
    assert cost is not None
    assert cost.queue_name == "mail"
    assert CLAIM_LIMIT <= cost.rows <= CLAIM_LIMIT + 1
    assert 2 <= cost.pages < 200


def test_a_claim_reads_more_rows_and_pages_while_dead_rows_are_kept(session: Callable[[], Session]) -> None:
    add_queued_jobs("mail", 3_000)
    reader = session()
    reader.begin()
    reader(execute, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader(lambda: Job.objects.count())
    cost_before = measure_claim(store, "mail")
    Job.objects.filter(pk__in=Job.objects.order_by("pk")[:2_500].values("pk")).delete()
    cost_after = measure_claim(store, "mail")
    reader.rollback()
    assert cost_before is not None
    assert cost_after is not None
    assert cost_after.rows > 10 * cost_before.rows
    assert cost_after.pages > cost_before.pages


def test_a_measurement_neither_waits_for_locks_nor_takes_any(session: Callable[[], Session]) -> None:
    job = make_job(queue_name="mail")
    claimer = session()
    claimer.begin()
    claimer(execute, f"SELECT FROM skipqueue_job WHERE id = {job.pk} FOR UPDATE")
    assert measure_claim(store, "mail") is not None
    claimer(execute, f"UPDATE skipqueue_job SET priority = 1 WHERE id = {job.pk}")
    claimer.commit()


def test_a_measurement_that_takes_too_long_ends_without_a_result(
    session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_costs, "MEASURE_SECONDS", 0.2)
    other_session = session()
    other_session.begin()
    other_session(execute, "LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")
    assert measure_claim(store, "mail") is None
    other_session.rollback()


def test_a_measurement_raises_errors_other_than_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_connection(*_: Any) -> Any:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(Store, "rows", lose_connection)
    with pytest.raises(OperationalError, match="closed"):
        measure_claim(store, "mail")


def test_a_supervisor_samples_the_deepest_queues() -> None:
    for number, queue_name in enumerate(("a", "b", "c", "d"), 1):
        write_rollup(queue_name)
        for _ in range(number):
            make_job(queue_name=queue_name)
    SampleDepths(store).run(time.monotonic())
    costs = {cost.queue_name: cost for cost in claim_costs.claim_costs(store)}
    assert set(costs) == {"b", "c", "d"}
    assert all(cost.pages > 0 for cost in costs.values())
    row_of_all_queues = RollUp.objects.get(span=60, queue_name="", task="", depth__isnull=False)
    assert row_of_all_queues.claim_pages == max(cost.pages for cost in costs.values())
    RollUp.objects.filter(span=60).update(starts_at=F("starts_at") - timedelta(minutes=6))
    assert claim_costs.claim_costs(store) == []


def test_the_row_of_an_hour_keeps_its_most_expensive_claim() -> None:
    make_job(queue_name="mail")
    for pages in (3, 7, 5):
        roll_up_depths(store, queues_now(store), [ClaimCost("mail", pages, pages)])
    rollup = RollUp.objects.get(span=3600, queue_name="mail")
    assert (rollup.claim_pages, rollup.claim_rows) == (7, 7)


def test_the_doctor_names_a_queue_with_expensive_claims() -> None:
    write_rollup("mail")
    make_job(queue_name="mail")
    roll_up_depths(store, queues_now(store), [ClaimCost("mail", rules.MANY_CLAIM_PAGES, 5)])
    assert list(rules.expensive_claims(store)) == []
    roll_up_depths(store, queues_now(store), [ClaimCost("mail", rules.MANY_CLAIM_PAGES + 1, 123_456)])
    (finding,) = rules.expensive_claims(store)
    assert finding.title == "Claims of queue mail read many pages"
    assert "123,456" in finding.found
    assert finding.command == 'VACUUM (VERBOSE, ANALYZE) "skipqueue_job";'
