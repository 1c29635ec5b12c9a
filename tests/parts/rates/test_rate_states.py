"""Keys of rates as operators see them: the rate, the tokens, the waiting jobs, and when the next job is admitted."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_skipqueue import job, rate
from django_skipqueue.console.facts import as_json
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Queue, RateBucket
from django_skipqueue.parts.rates.states import RATE_OF_KEY, RateState, rate_states, waiting_for_a_token
from django_skipqueue.queue.store import Store

from ...app.limit_rows import make_rated
from ...app.rows import make_job

store = Store("default")

pytestmark = pytest.mark.django_db


def call_with_token(token: str) -> None:
    """A task with a secret in the key of its rate."""


def first_keys(**options: Any) -> list[RateState]:
    return rate_states(store, **{"most": 10} | options)


def insert_bucket(key: str, *, full_in: float, due_in: float | None) -> None:
    now = timezone.now()
    due_at = None if due_in is None else now + timedelta(seconds=due_in)
    RateBucket.objects.create(key=key, full_at=now + timedelta(seconds=full_in), due_at=due_at)


def test_a_rate_key_has_its_rate_its_tokens_and_the_number_of_waiting_jobs() -> None:
    make_rated("rate:t a=1", waiting=3, minutes=10, rate_interval=0.6, rate_burst=5)
    insert_bucket("rate:t a=1", full_in=1.5, due_in=0.3)
    (state,) = first_keys()
    assert (state.key, state.rate, state.current.burst, state.current.tokens) == ("rate:t a=1", "100/m", 5, 2)
    assert (str(state.waiting), state.is_masked) == ("3", False)
    assert 0 < (state.current.due_in or 0) <= 0.3
    assert 600 <= state.oldest < 660


def test_a_queued_job_has_taken_its_token() -> None:
    make_rated("k", rate_burst=3)
    for _ in range(2):
        make_job(rate_key="k", rate_interval=60.0, rate_burst=3)
    (state,) = first_keys()
    assert (state.current.tokens, state.current.due_in) == (1, None)


def test_the_number_of_tokens_is_never_negative() -> None:
    make_rated("k")
    insert_bucket("k", full_in=7200, due_in=60)
    assert first_keys()[0].current.tokens == 0


def test_a_key_without_waiting_jobs_is_not_shown() -> None:
    make_job(rate_key="k", rate_interval=60.0, rate_burst=1)
    make_rated("k", held=True)
    make_rated("k", limit_key="limit:x", limit_kind="concurrency", capacity=1)  # this job waits for its permit
    insert_bucket("k", full_in=60, due_in=None)
    assert first_keys() == []
    make_rated("k", limit_key="limit:x", limit_kind="concurrency", capacity=1, gate="rate")
    assert len(first_keys()) == 1


def test_the_rate_that_somebody_has_set_for_a_queue_is_shown() -> None:
    make_rated("queue:mail", rate_interval=60.0)
    Queue.objects.create(name="mail", rate_interval=0.02, rate_burst=50)
    assert [(state.rate, state.current.burst, state.current.tokens) for state in first_keys()] == [("50/s", 50, 50)]
    Queue.objects.update(rate_interval=0.0, rate_burst=0)  # no rate at all
    assert [(state.rate, state.current.burst, state.current.tokens) for state in first_keys()] == [(None, None, None)]
    Queue.objects.update(rate_interval=None, rate_burst=None)  # the rate in the rows of the jobs
    assert [state.rate for state in first_keys()] == ["1/m"]


def test_keys_of_rates_are_in_alphabetical_order() -> None:
    for key in "cab":
        make_rated(key)
    assert [state.key for state in first_keys()] == ["a", "b", "c"]
    assert [state.key for state in first_keys(most=2)] == ["a", "b"]


def test_the_next_jobs_of_a_rate_key_are_in_their_order() -> None:
    low, high = make_rated("k")[0], make_rated("k", priority=7)[0]
    make_rated("k", held=True)
    assert list(waiting_for_a_token("k")) == [high, low]
    assert first_keys()[0].current.next_id == high.pk


def test_waiting_jobs_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.parts.keyed.states.MOST_JOBS_OF_KEY_COUNTED", 2)
    make_rated("k", waiting=5)
    assert str(first_keys()[0].waiting) == "2+"


def test_a_secret_in_a_rate_key_is_masked(registry: Registry) -> None:
    job(rate=rate("1/m", by="token"))(call_with_token)
    make_rated(
        'rate:t token="hush-hush"', task=f"{call_with_token.__module__}.call_with_token", kwargs={"token": "hush-hush"}
    )
    (state,) = first_keys()
    assert state.is_masked
    assert "hush" not in state.key
    assert "hush" not in str(as_json(RATE_OF_KEY, state))


def test_the_number_of_queries_does_not_grow_with_the_keys_of_rates() -> None:
    query_counts = []
    for number_of_keys in (1, 30):
        for number in range(number_of_keys):
            make_rated(f"{number_of_keys} {number}")
        with CaptureQueriesContext(connection) as queries:
            first_keys(most=100)
        query_counts.append(len(queries))
    assert query_counts == [2, 2]
