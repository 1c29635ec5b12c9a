"""Helpers for the tests of the doctor's rules: the findings of one rule, and stores that return given rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.rule import Finding, Severity
from django_skipqueue.queue.store import Store

FindingsOf = Callable[[str], list[Finding]]
STORE = Store("default")


class StoreOfRows(Store):
    """A store whose statements return these rows."""

    def __init__(self, *rows: Sequence[Any]) -> None:
        super().__init__("default")
        self._rows = [tuple(row) for row in rows]

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the given rows for every statement."""
        return self._rows


@pytest.fixture
def findings_of(transactional_db: None) -> FindingsOf:
    """Applies all rules. Returns the problems and infos of the rule with this code."""

    def find(code: str) -> list[Finding]:
        return [each for each in examine(STORE) if each.code == code and each.severity != Severity.OK]

    return find
