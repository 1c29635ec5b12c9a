"""Fixtures for a queue in two databases."""

from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.queue import silence

BOTH = ("default", "other")


@pytest.fixture
def set_placement(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the setting PLACEMENT for two databases, which both count as reachable."""
    monkeypatch.setattr(silence, "avoided_until", {})

    def set_setting(placement: Any = None, **others: Any) -> None:
        settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": placement, **others}

    return set_setting
