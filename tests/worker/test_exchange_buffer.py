"""`ExchangeBuffer` keeps the result of one exchange with the database until the worker applies it, once."""

import time
from typing import Any, cast

import pytest

from django_skipqueue.jobs.registry import RUNNER_NAMES
from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.exchange import Exchange, ExchangeBuffer

JOB = ClaimedJob(
    id=1, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
    priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
)  # fmt: skip
ATTEMPT = Attempt(JOB, COMPLETED, started=1.0, ended=2.0, worker="w")


def make_exchange() -> Exchange:
    result = ExchangeResult([], cast("list[tuple[Any, ...]]", [tuple(JOB)] * 3), ["default"], time.monotonic())
    return Exchange(result, [ATTEMPT], 3, {}, dict.fromkeys(RUNNER_NAMES, 1), 0.0, 0.0)


def test_a_waiting_result_is_counted_until_it_is_applied_once() -> None:
    applied_exchanges: list[Exchange] = []

    def apply(exchange: Exchange) -> bool:
        applied_exchanges.append(exchange)
        return True

    buffer = ExchangeBuffer(apply)
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (True, 0, [])
    waiting_exchange = make_exchange()
    buffer.put(waiting_exchange)
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (False, 3, [ATTEMPT])
    assert buffer.apply() is True
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (True, 0, [])
    assert buffer.apply() is False, "no result waits any more"
    assert applied_exchanges == [waiting_exchange]


def test_a_second_result_is_refused_while_one_waits() -> None:
    buffer = ExchangeBuffer(lambda exchange: False)
    buffer.put(make_exchange())
    with pytest.raises(AssertionError):
        buffer.put(make_exchange())


def test_the_buffer_is_empty_while_its_result_is_applied() -> None:
    """Code that runs while the result is applied may call `apply`: it must not apply the result again."""
    was_empty: list[bool] = []

    def apply(exchange: Exchange) -> bool:
        was_empty.append(buffer.is_empty)
        return True

    buffer = ExchangeBuffer(apply)
    buffer.put(make_exchange())
    buffer.apply()
    assert was_empty == [True]
