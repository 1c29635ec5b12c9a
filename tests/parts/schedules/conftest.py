"""The fixtures of the tests of schedules."""

from collections.abc import Iterator
from typing import Any

import pytest

from .rows import without_entries


@pytest.fixture(autouse=True)
def no_entries() -> Iterator[None]:
    """Take the entries of the suite away, and put them back after the test."""
    with without_entries():
        yield


@pytest.fixture
def sent_events() -> list[Any]:
    """The events that a store has sent: a test makes it with `Store(…, send=sent_events.append)`."""
    return []
