"""The keys of limits as operators see them: halted sequences, waiting jobs, and the order of the keys."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue import job, limit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.parts.limits.states import (
    LimitState,
    first_states,
    halted_keys,
    halted_states,
    limit_states,
    waiting_keys,
)
from django_skipqueue.queue.store import Store

from ...app.limit_rows import make_halted, make_keyed, make_limited

store = Store("default")

pytestmark = pytest.mark.django_db


def pay_with_token(token: str) -> None:
    """A task with a secret in the key of its limit."""


def first_keys(most: int = 10) -> list[LimitState]:
    return first_states(store, most=most)


def test_the_state_of_a_key_counts_its_permit_holders_and_its_waiting_jobs() -> None:
    make_limited("limit:t a=1", held=2, waiting=3, minutes=10)
    (state,) = first_keys()
    assert (state.key, state.kind, state.current.capacity) == ("limit:t a=1", "limit", 2)
    assert (str(state.held), str(state.waiting), state.halted) == ("2", "3", None)
    assert 600 <= state.oldest < 660


def test_a_key_without_waiting_jobs_is_not_shown() -> None:
    make_keyed("limit:t", "running")
    make_keyed("sequence:t", "failed", kind="halting")
    make_keyed("limit:t", held=True)  # this job waits for another job first
    assert first_keys() == []
    assert halted_keys(store) == []
    assert waiting_keys(store, limit=9) == []


def test_halted_sequences_come_first_and_then_the_longest_waiting_jobs() -> None:
    make_limited("b", minutes=90)
    make_limited("c", minutes=20, waiting=2)
    make_limited("a", minutes=50)
    newest, oldest = make_halted("z", minutes=3), make_halted("y", minutes=8)
    assert [state.current.key for state in first_keys()] == ["y", "z", "b", "a", "c"]
    assert [state.current.key for state in first_keys(most=3)] == ["y", "z", "b"]
    assert [state.halted and state.halted.job_id for state in first_keys()] == [oldest.pk, newest.pk, None, None, None]
    assert [state.current.key for state in halted_states(store, most=1)] == ["y"]


def test_a_sequence_that_goes_on_after_a_failure_has_not_halted() -> None:
    make_keyed("sequence:t", "failed", kind="sequence")
    make_keyed("sequence:t", kind="sequence")
    assert [state.halted for state in first_keys()] == [None]


def test_a_job_that_waits_for_its_next_attempt_holds_the_key_of_its_sequence() -> None:
    make_keyed("sequence:t", "scheduled", kind="halting", attempts=1)
    make_keyed("sequence:t", kind="halting")
    assert [str(state.held) for state in first_keys()] == ["1"]


def test_the_longest_waiting_jobs_are_found_among_many_keys() -> None:
    make_limited("zzz", minutes=500)
    for number in range(60):
        make_limited(f"key {number:02}", held=0)
    assert first_keys(most=3)[0].current.key == "zzz"


def test_jobs_of_a_key_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.parts.keyed.states.MOST_JOBS_OF_KEY_COUNTED", 2)
    make_limited("many", held=4, waiting=5)
    (state,) = first_keys()
    assert (str(state.held), str(state.waiting)) == ("2+", "2+")


def test_a_secret_in_a_key_is_masked(registry: Registry) -> None:
    job(name="shop.pay", concurrency=limit(1, by="token"))(pay_with_token)
    key = 'limit:shop.pay token="tok-4711-secret"'
    for status in ("running", "blocked"):
        make_keyed(key, status, task="shop.pay", kwargs={"token": "tok-4711-secret"})
    (state,) = first_keys()
    assert "tok-4711" not in state.key
    assert state.is_masked
    make_limited("limit:shop.send to=5")
    assert {state.current.task: state.is_masked for state in first_keys()} == {
        "shop.pay": True,
        "tests.app.jobs.noop": False,
    }


def test_the_number_of_queries_does_not_grow_with_the_keys() -> None:
    for number in range(40):
        make_limited(f"key {number}")
        make_halted(f"sequence {number}")
    with CaptureQueriesContext(connection) as queries:
        first_keys()
    assert len(queries) == 4


class TestKeysInOrder:
    def test_waiting_keys_are_read_page_by_page(self) -> None:
        for key in ("a", "b", "c", "d"):
            make_limited(key)
        assert waiting_keys(store, limit=2) == ["a", "b"]
        assert waiting_keys(store, after="b", limit=9) == ["c", "d"]

    def test_a_key_without_jobs_is_left_out(self) -> None:
        make_limited("a")
        assert [state.key for state in limit_states(store, ["b", "a"], halted={})] == ["a"]
        assert limit_states(store, [], halted={}) == []


def test_the_number_of_halted_sequences_that_are_read_is_limited() -> None:
    for number in range(3):
        make_halted(f"key {number}", minutes=10 - number)
    assert [halted.key for halted in halted_keys(store, limit=2)] == ["key 0", "key 1"]
    assert halted_keys(store)[0].seconds == pytest.approx(timedelta(minutes=10).total_seconds(), abs=30)
