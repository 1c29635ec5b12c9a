"""`Capacity.prefetch`: the number of jobs that were finished within the last fifth of a second, up to a cap."""

from django_skipqueue.worker.claiming import LONGEST_WAIT_AHEAD, MOST_PREFETCHED, PREFETCH_SECONDS, Capacity


def test_nothing_is_held_in_advance_before_anything_is_finished() -> None:
    assert Capacity(4).prefetch(now=0) == 0


def test_what_was_finished_within_the_span_is_held_in_advance() -> None:
    ahead = Capacity(4)
    ahead.finished(3, now=100.0)
    ahead.finished(4, now=100.0 + PREFETCH_SECONDS / 2)
    assert ahead.prefetch(now=100.0 + PREFETCH_SECONDS / 2) == 7


def test_what_was_finished_before_the_span_does_not_count() -> None:
    ahead = Capacity(4)
    ahead.finished(3, now=100.0)
    ahead.finished(4, now=100.0 + PREFETCH_SECONDS)
    assert ahead.prefetch(now=100.0 + 1.5 * PREFETCH_SECONDS) == 4
    assert ahead.prefetch(now=100.0 + 3 * PREFETCH_SECONDS) == 0


def test_it_counts_on_after_a_pause() -> None:
    ahead = Capacity(4)
    ahead.finished(5, now=100.0)
    assert ahead.prefetch(now=200.0) == 0
    ahead.finished(2, now=200.0)
    assert ahead.prefetch(now=200.0) == 2


def test_a_crash_never_costs_more_than_the_cap() -> None:
    ahead = Capacity(4)
    ahead.finished(10 * MOST_PREFETCHED, now=100.0)
    assert ahead.prefetch(now=100.0) == MOST_PREFETCHED


def test_an_empty_batch_is_not_remembered() -> None:
    ahead = Capacity(4)
    for _ in range(1000):
        ahead.finished(0, now=100.0)
    assert ahead.prefetch(now=100.0) == 0
    assert len(ahead.within_span.added) == 0


def test_what_waits_is_kept_for_longer_than_it_is_claimed_for() -> None:
    """Otherwise workers would release and claim jobs again and again."""
    ahead = Capacity(4)
    ahead.finished(3, now=100.0)
    now = 100.0 + (PREFETCH_SECONDS + LONGEST_WAIT_AHEAD) / 2
    assert ahead.prefetch(now) == 0
    assert ahead.surplus(4 + 5, now) == 5 - 3
