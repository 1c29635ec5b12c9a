"""The fixtures of a queue in two databases."""

from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.queue import silence

BOTH = ("default", "other")


@pytest.fixture
def placed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the placement of jobs in two databases. At first both databases count as reachable."""
    monkeypatch.setattr(silence, "avoided_until", {})

    def place(placement: Any = None, **others: Any) -> None:
        settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": placement, **others}

    return place
