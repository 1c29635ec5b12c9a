"""`Unchanged` tells for how long a value has not changed. A gap between two observations starts the time again."""

from django_skipqueue.supervisor.liveness import Unchanged


def test_the_time_counts_from_the_first_observation_of_a_value() -> None:
    unchanged = Unchanged(longest_gap=10)
    for now in (0.0, 5.0, 10.0):
        unchanged.observe({"a": 1, "b": now}, now, now)  # the value of b changes each time
    assert (unchanged.seconds("a"), unchanged.seconds("b")) == (10, 0)


def test_a_slow_observation_counts_from_its_end_to_the_start_of_the_next() -> None:
    """The value was read at some time between the start and the end of the observation."""
    unchanged = Unchanged(longest_gap=10)
    unchanged.observe({"a": 1}, 0.0, 4.0)
    unchanged.observe({"a": 1}, 5.0, 9.0)
    assert unchanged.seconds("a") == 1


def test_after_a_gap_between_observations_the_time_begins_again() -> None:
    unchanged = Unchanged(longest_gap=10)
    assert not unchanged.observe({"a": 1}, 0.0, 0.0)
    assert unchanged.observe({"a": 1}, 9.0, 9.0)  # no gap
    assert not unchanged.observe({"a": 1}, 20.0, 20.0)  # a gap of 11 seconds
    assert unchanged.seconds("a") == 0


def test_a_name_that_was_missing_once_begins_again() -> None:
    unchanged = Unchanged(longest_gap=10)
    unchanged.observe({"a": 1}, 0.0, 0.0)
    unchanged.observe({}, 1.0, 1.0)
    unchanged.observe({"a": 1}, 2.0, 2.0)
    assert unchanged.seconds("a") == 0
