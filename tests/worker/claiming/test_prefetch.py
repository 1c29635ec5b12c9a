"""`Capacity.prefetch`: the number of jobs that were finished within the last fifth of a second, up to a cap."""

from django_skipqueue.worker.claiming import LONGEST_WAIT_AHEAD, MOST_PREFETCHED, PREFETCH_SECONDS, Capacity


def test_no_job_is_claimed_ahead_before_a_job_is_finished() -> None:
    assert Capacity(4).prefetch(now=0) == 0


def test_as_many_jobs_are_claimed_ahead_as_were_lately_finished() -> None:
    capacity = Capacity(4)
    capacity.finished(3, now=100.0)
    capacity.finished(4, now=100.0 + PREFETCH_SECONDS / 2)
    assert capacity.prefetch(now=100.0 + PREFETCH_SECONDS / 2) == 7


def test_jobs_finished_longer_ago_do_not_count() -> None:
    capacity = Capacity(4)
    capacity.finished(3, now=100.0)
    capacity.finished(4, now=100.0 + PREFETCH_SECONDS)
    assert capacity.prefetch(now=100.0 + 1.5 * PREFETCH_SECONDS) == 4
    assert capacity.prefetch(now=100.0 + 3 * PREFETCH_SECONDS) == 0


def test_finished_jobs_are_counted_again_after_a_pause() -> None:
    capacity = Capacity(4)
    capacity.finished(5, now=100.0)
    assert capacity.prefetch(now=200.0) == 0
    capacity.finished(2, now=200.0)
    assert capacity.prefetch(now=200.0) == 2


def test_no_more_jobs_are_claimed_ahead_than_the_cap() -> None:
    capacity = Capacity(4)
    capacity.finished(10 * MOST_PREFETCHED, now=100.0)
    assert capacity.prefetch(now=100.0) == MOST_PREFETCHED


def test_a_batch_without_finished_jobs_is_not_remembered() -> None:
    capacity = Capacity(4)
    for _ in range(1000):
        capacity.finished(0, now=100.0)
    assert capacity.prefetch(now=100.0) == 0
    assert len(capacity.within_prefetch.added) == 0


def test_jobs_claimed_ahead_are_kept_longer_than_new_ones_are_claimed() -> None:
    """Otherwise workers would release the jobs, and claim them again, again and again."""
    capacity = Capacity(4)
    capacity.finished(3, now=100.0)
    now = 100.0 + (PREFETCH_SECONDS + LONGEST_WAIT_AHEAD) / 2
    assert capacity.prefetch(now) == 0
    assert capacity.surplus(4 + 5, now) == 5 - 3  # four jobs run and five wait; three of the five are kept
