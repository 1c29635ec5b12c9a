"""The settings of a queue in two databases."""

from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.queue import silence

BOTH = ("default", "other")


@pytest.fixture
def placed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how jobs are placed in two databases. No database counts as one that could not be reached."""
    monkeypatch.setattr(silence, "_avoided_until", {})

    def place(placement: Any = None, **others: Any) -> None:
        settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": placement, **others}

    return place
