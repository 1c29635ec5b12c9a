"""`skipqueue status`: the rates of queues, from their roll-ups."""

import re
import time

import pytest

from django_skipqueue.events.events import AttemptsCompleted
from django_skipqueue.models import RollUp
from django_skipqueue.parts.history.rollups import RollUpTally, roll_up
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob

from ...console.cli.running import skipqueue
from ...console.cli.test_status import status_json

pytestmark = pytest.mark.django_db(transaction=True)


def claimed_job(queue_name: str, *, waited: float) -> ClaimedJob:
    now = time.time()
    return ClaimedJob(id=1, lease=1, task="t", queue_name=queue_name, args="[]", kwargs="{}", attempt=1, max_attempts=9,
                      priority=0, run_after=now - waited, locked_at=now, metadata="{}", claimed_at=50.0)  # fmt: skip


def test_a_queue_in_which_jobs_have_ended_has_its_rate() -> None:
    tally = RollUpTally()
    job = claimed_job("mail", waited=6)
    tally.ended(AttemptsCompleted, [Attempt(job, COMPLETED, 50.0, 50.0, "w")] * 300)
    roll_up(Store("default"), *tally.take())
    [queue] = status_json()["queues"]
    assert queue["queue"] == "mail"
    assert queue["jobs_per_minute"] >= 300 / 6
    assert queue["p95_wait_seconds"] == pytest.approx(6.0)
    assert re.search(r"^mail +0 +0 +\d+ +6\.0s +0$", skipqueue("status").out, re.MULTILINE)


def test_jobs_with_equal_waiting_times_have_this_time_as_their_95th_percentile() -> None:
    """A regression: for 40 jobs that had all waited for 16 minutes, the command once printed 57 minutes."""
    tally = RollUpTally()
    job = claimed_job("search", waited=981.6)
    tally.ended(AttemptsCompleted, [Attempt(job, COMPLETED, 50.0, 50.0, "w")] * 40)
    roll_up(Store("default"), *tally.take())
    [queue] = status_json()["queues"]
    assert queue["p95_wait_seconds"] == pytest.approx(981.6)
    RollUp.objects.update(waited_longest=None)
    [queue] = status_json()["queues"]
    assert 981.6 / 1.5 <= queue["p95_wait_seconds"] <= 981.6 * 1.5, "a row without the longest time gives an estimate"
