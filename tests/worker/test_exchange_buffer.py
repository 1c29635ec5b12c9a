"""`ExchangeBuffer`: one result of an exchange waits, and is applied once."""

import time
from typing import Any, cast

import pytest

from django_skipqueue.jobs.registry import RUNNER_NAMES
from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.exchange import Exchange, ExchangeBuffer

JOB = ClaimedJob(1, 1, "t", "default", "[]", "{}", 1, 10, 0, 0.0, 0.0, "{}")
ATTEMPT = Attempt(JOB, COMPLETED, 1.0, 2.0, "w")


def exchange() -> Exchange:
    answer = ExchangeResult([], cast("list[tuple[Any, ...]]", [tuple(JOB)] * 3), ["default"], time.monotonic())
    return Exchange(answer, [ATTEMPT], 3, {}, dict.fromkeys(RUNNER_NAMES, 1), 0.0, 0.0)


def test_what_waits_is_counted_until_it_is_applied_once() -> None:
    applied: list[Exchange] = []

    def apply(exchange: Exchange) -> bool:
        applied.append(exchange)
        return True

    buffer = ExchangeBuffer(apply)
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (True, 0, [])
    waiting = exchange()
    buffer.put(waiting)
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (False, 3, [ATTEMPT])
    assert buffer.apply() is True
    assert (buffer.is_empty, buffer.claimed, list(buffer.attempts)) == (True, 0, [])
    assert buffer.apply() is False, "there is none"
    assert applied == [waiting]


def test_a_result_that_waits_is_not_overwritten() -> None:
    buffer = ExchangeBuffer(lambda exchange: False)
    buffer.put(exchange())
    with pytest.raises(AssertionError):
        buffer.put(exchange())


def test_it_is_empty_while_it_applies() -> None:
    """Code that runs while the result is applied may call `apply`: it must not apply the result again."""
    seen: list[bool] = []

    def apply(exchange: Exchange) -> bool:
        seen.append(buffer.is_empty)
        return True

    buffer = ExchangeBuffer(apply)
    buffer.put(exchange())
    buffer.apply()
    assert seen == [True]
