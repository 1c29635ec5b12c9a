"""The window: how many jobs a relay may claim, and how often it counts."""

import time
from typing import Any

import pytest

from django_skipqueue.relay import window
from django_skipqueue.relay.carried_jobs import CarriedJobs
from django_skipqueue.relay.window import Window


class SlowStore:
    """Takes a while to count, as with 100,000 rows."""

    def rows(self, *_: object) -> list[tuple[int]]:
        time.sleep(0.05)
        return [(100,)]


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_slow_count_is_not_repeated_all_the_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "COUNT_INTERVAL", 0.1)
    store: Any = SlowStore()
    counted, began = Window(store, CarriedJobs(), carrier_id="celery", size=size), time.monotonic()
    counted.run(0.0)
    assert counted.due_at - began >= 0.05 * window.COUNT_SHARE
