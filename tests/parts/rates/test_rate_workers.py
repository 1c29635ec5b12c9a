"""Live workers: no key ever exceeds its rate, in any period, and each job starts soon after its slot."""

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from django.test import override_settings

from django_skipqueue.models import Job, Queue

from ...app import jobs
from ...app.limits.rates.jobs import (
    rated_fairly,
    rated_together,
    twenty_per_second_and_two_at_once,
    twenty_per_second_in_order,
)
from ...app.models import Ledger
from ...app.rates.jobs import twenty_per_second
from ...app.sessions import connect
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses, workers
from ..limits.test_workers import has_retried, most_at_once_by_key, numbers_in_order, reading_repeatedly

RunWorker = Callable[..., ManagePy]

INTERVAL, BURST = 0.05, 2
"""The rate of all tasks here: one job in this number of seconds, and this number of jobs at once at first."""

KEPT_SECONDS = 0.1
"""While a supervisor is late, a key keeps the tokens of this many seconds beyond its burst."""

pytestmark = pytest.mark.django_db(transaction=True)

SELECT_TAKEN_TOKENS = """
SELECT
    extract(epoch FROM statement_timestamp())::float8 AS began_at,
    rate_key,
    sum(attempts) + count(*) FILTER (WHERE status = 'queued') AS taken_tokens,
    count(*) FILTER (WHERE status = 'queued') AS queued_jobs,
    extract(epoch FROM clock_timestamp())::float8 AS ended_at
FROM skipqueue_job
WHERE rate_key IS NOT NULL
GROUP BY rate_key
"""
"""The number of taken tokens of each key: one for each attempt that has begun, and one for each queued job."""

SELECT_STARTED_JOBS = """
SELECT extract(epoch FROM statement_timestamp())::float8 AS read_at, count(*) AS started_jobs
FROM skipqueue_job WHERE attempts > 0
"""


class TokenWitness:
    """Reads again and again how many tokens were taken, and compares each pair of readings."""

    def __init__(self) -> None:
        self.number_of_reads = 0
        self.most_queued = 0
        self.largest_excess: defaultdict[str, float] = defaultdict(float)
        """The largest number of tokens that a key has taken within a period beyond the tokens that its rate gives."""
        self._least_excess: dict[str, float] = {}
        """The least number of taken tokens beyond the rate that an earlier reading has found, by key."""

    def read(self, session: Any) -> None:
        for began_at, key, taken_tokens, queued, ended_at in session.execute(SELECT_TAKEN_TOKENS).fetchall():
            self.most_queued = max(self.most_queued, queued)
            least_excess = self._least_excess.get(key, float("inf"))
            self.largest_excess[key] = max(
                self.largest_excess[key], float(taken_tokens) - ended_at / INTERVAL - least_excess
            )
            self._least_excess[key] = min(least_excess, float(taken_tokens) - began_at / INTERVAL)
        self.number_of_reads += 1

    def assert_no_rate_was_exceeded(self) -> None:
        """Allow twice the burst and the kept tokens: the witness may see a transaction after it took its tokens."""
        assert self.number_of_reads > 10
        assert self.largest_excess
        assert max(self.largest_excess.values()) <= 2 * BURST + KEPT_SECONDS / INTERVAL
        assert self.most_queued <= BURST


@contextmanager
def no_key_exceeds_its_rate() -> Iterator[TokenWitness]:
    """Fail if a key exceeds its rate at any moment while the block runs."""
    witness = TokenWitness()
    with reading_repeatedly(witness):
        yield witness
    witness.assert_no_rate_was_exceeded()


def start_times(key: str) -> list[float]:
    """Return when each job of a key has started, in seconds since the first start."""
    times = Ledger.objects.filter(entry__startswith=f"start {key} ").order_by("id").values_list("written_at", flat=True)
    first_start = times[0]
    return [(time - first_start).total_seconds() for time in times]


def test_the_witness_of_these_tests_finds_an_exceeded_rate() -> None:
    witness = TokenWitness()
    with connect() as session:
        twenty_per_second.defer_many([("a",)] * 12)
        witness.read(session)
        Job.objects.blocked().update(status="completed", gate=None, attempts=1, finished_at="2026-01-01T00:00:00Z")
        for _ in range(20):
            witness.read(session)
    with pytest.raises(AssertionError):
        witness.assert_no_rate_was_exceeded()


def test_each_job_starts_soon_after_its_slot_and_in_order(runworker: RunWorker) -> None:
    """On two machines, the jobs of each of two keys start one after the other, the highest priority first.

    A slot comes one interval after the last start. Most jobs start right at their slot. With sweeps alone, each job
    would start up to a second late.
    """
    for name in ("one", "two"):
        runworker("--processes", "1", "--concurrency", "4", "--name", name)
    wait_until(lambda: len(workers(2)) == 2)
    with no_key_exceeds_its_rate():
        for key in "ab":
            twenty_per_second.defer_many([(key, number) for number in range(60)])
            twenty_per_second.using(priority=10).defer(key, 100)
        wait_for_statuses(completed=122)
    for key in "ab":
        delays = [start - previous_start - INTERVAL for previous_start, start in pairwise(start_times(key))]
        assert median(delays) < 0.5
        numbers = numbers_in_order(key, "start")
        assert numbers.index(100) < 40, "the job was enqueued last, and overtook the jobs that still waited"
        numbers.remove(100)
        # At most seven jobs that should start before it are in other slots: a process that stands still delays only its
        # own jobs.
        assert all(number - position < 8 for position, number in enumerate(numbers)), "eight jobs run at once"


def test_retries_take_tokens_and_no_job_is_forgotten(runworker: RunWorker) -> None:
    runworker("--concurrency", "4")
    with no_key_exceeds_its_rate():
        twenty_per_second.defer_many([("a", number, 3) for number in range(10)])
        wait_for_statuses(completed=10)
    assert len(start_times("a")) == 30, "ten jobs with three attempts each"
    deferred_at = Job.objects.earliest("enqueued_at").enqueued_at
    last_start = Ledger.objects.latest("written_at").written_at
    assert (last_start - deferred_at).total_seconds() >= (30 - BURST - 1) * INTERVAL


def test_a_backlog_does_not_burst_when_workers_come_back(runworker: RunWorker) -> None:
    """No worker claims for a while. The supervisor queues the burst, and no more jobs."""
    with no_key_exceeds_its_rate() as witness:
        twenty_per_second.defer_many([("a", number) for number in range(30)])
        wait_until(lambda: witness.number_of_reads > 20)
        assert statuses() == {"queued": BURST, "blocked": 28}
        runworker("--concurrency", "8")
        wait_for_statuses(completed=30)


def test_a_rate_and_a_limit_of_one_task_are_both_kept(runworker: RunWorker) -> None:
    """The permits of two accounts are free before there are tokens. Then long jobs hold the permits longer."""
    runworker("--processes", "2", "--concurrency", "4")
    with no_key_exceeds_its_rate():
        twenty_per_second_and_two_at_once.defer_many([("t", account, 0.0) for account in "ab" * 20])
        wait_for_statuses(completed=40)
        twenty_per_second_and_two_at_once.defer_many([("t", "a", 0.3)] * 8)
        wait_for_statuses(completed=48)
    assert max(most_at_once_by_key().values()) <= 2


def test_no_rate_is_exceeded_while_workers_are_killed(runworker: RunWorker) -> None:
    running = [runworker("--processes", "2", "--concurrency", "4") for _ in range(2)]
    wait_until(lambda: len(workers(4)) == 4)
    with no_key_exceeds_its_rate():
        for first_number in range(0, 90, 30):
            twenty_per_second.defer_many([("a", number) for number in range(first_number, first_number + 30)])
            wait_until(lambda: Job.objects.completed().count() > first_number)  # noqa: B023 (called at once)
            with suppress(ProcessLookupError):
                os.kill(workers(1)[0].pid, signal.SIGKILL)
            discarded = list(Job.objects.blocked().values_list("pk", flat=True)[:3])
            Job.objects.filter(pk__in=discarded).discard()
            wait_until(partial(has_retried, discarded))
        wait_for_statuses(completed=90, deadline=60)
    assert len(running) == 2


def has_started_more_than(number: int) -> bool:
    return Job.objects.filter(attempts__gt=0).count() > number


@pytest.mark.slow  # the test counts starts for 15 seconds
def test_the_rate_of_a_queue_holds_while_it_is_changed(runworker: RunWorker) -> None:
    """The rate is none, then twenty a second, then none. Each change counts for the jobs that wait already."""
    skipqueue = {"QUEUES": {"mail": {"rate": None}}}
    for _ in range(2):
        runworker("--concurrency", "2", "--queues", "mail", skipqueue=skipqueue)
    wait_until(lambda: len(workers(2)) == 2)
    with override_settings(SKIPQUEUE=skipqueue):
        jobs.slow.using(queue_name="mail").defer_many([(0.01,)] * 3_000)
    wait_until(partial(has_started_more_than, 20))
    with override_settings(SKIPQUEUE=skipqueue):
        Queue.rate("mail", "20/s")
    wait_until(lambda: Job.objects.queued().count() <= 20)
    with connect() as session:
        [(begin, started_before)] = session.execute(SELECT_STARTED_JOBS).fetchall()
        wait_until(partial(has_started_more_than, started_before + 60))
        [(end, started_after)] = session.execute(SELECT_STARTED_JOBS).fetchall()
    assert started_after - started_before <= (end - begin) * 20 + 2 * 20  # twenty a second, and twice the burst
    assert Job.objects.blocked().count() > 1_000
    Queue.rate("mail", None)
    wait_for_statuses(completed=3_000, deadline=60)


@pytest.mark.parametrize("task", [rated_fairly, rated_together])
def test_a_rate_and_a_fair_share_of_one_task_are_both_kept(runworker: RunWorker, task: Any) -> None:
    """A tenant with few jobs does not wait for all jobs of another tenant, whether they share the tokens or not."""
    runworker("--processes", "2", "--concurrency", "4")
    task.defer_many([("large",)] * 1_000)
    wait_until(lambda: Job.objects.completed().count() > 5)
    ids = [task.defer("small").pk for _ in range(5)]
    with connect() as session:
        [(begin, started_before)] = session.execute(SELECT_STARTED_JOBS).fetchall()
        wait_until(lambda: Job.objects.filter(pk__in=ids).completed().count() == 5)
        [(end, started_after)] = session.execute(SELECT_STARTED_JOBS).fetchall()
    assert Job.objects.unfinished().count() > 500
    # fifty a second, twice the burst of two, and the five tokens that a key keeps for a late supervisor
    assert started_after - started_before <= (end - begin) * 50 + 2 * 2 + 5


def test_a_rate_and_sequences_of_one_task_are_both_kept(runworker: RunWorker) -> None:
    """The jobs of five orders share the rate of their tenant; each order stays in its order."""
    runworker("--processes", "2", "--concurrency", "4")
    wait_until(lambda: len(workers(2)) == 2)
    with no_key_exceeds_its_rate():
        twenty_per_second_in_order.defer_many([("t", f"o{number % 5}", number) for number in range(60)])
        wait_for_statuses(completed=60)
    for order in range(5):
        assert numbers_in_order(f"o{order}") == list(range(order, 60, 5))
