"""`Unchanged`: for how long a value has not changed, as far as it was watched without a gap."""

from django_skipqueue.supervisor.liveness import Unchanged


def test_it_counts_from_the_first_observation_of_a_value() -> None:
    seen = Unchanged(longest_gap=10)
    for now in (0.0, 5.0, 10.0):
        seen.observe({"a": 1, "b": now}, now, now)
    assert (seen.seconds("a"), seen.seconds("b")) == (10, 0)


def test_a_look_that_takes_long_counts_as_little_as_it_may_mean() -> None:
    """The value was read at some time between the beginning and the end of the look."""
    seen = Unchanged(longest_gap=10)
    seen.observe({"a": 1}, 0.0, 4.0)
    seen.observe({"a": 1}, 5.0, 9.0)
    assert seen.seconds("a") == 1


def test_after_a_gap_it_begins_again() -> None:
    seen = Unchanged(longest_gap=10)
    assert not seen.observe({"a": 1}, 0.0, 0.0)
    assert seen.observe({"a": 1}, 9.0, 9.0)
    assert not seen.observe({"a": 1}, 20.0, 20.0)
    assert seen.seconds("a") == 0


def test_a_name_that_was_missing_is_new() -> None:
    seen = Unchanged(longest_gap=10)
    seen.observe({"a": 1}, 0.0, 0.0)
    seen.observe({}, 1.0, 1.0)
    seen.observe({"a": 1}, 2.0, 2.0)
    assert seen.seconds("a") == 0
