"""What the tests of the doctor share: its findings by their codes, and stores with rows that no test can arrange."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.rule import Finding, Severity
from django_skipqueue.queue.store import Store

Found = Callable[[str], list[Finding]]
STORE = Store("default")


class Rows(Store):
    """A store whose statements return these rows."""

    def __init__(self, *rows: Sequence[Any]) -> None:
        super().__init__("default")
        self._rows = [tuple(row) for row in rows]

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The given rows, whatever the statement is."""
        return self._rows


@pytest.fixture
def found(transactional_db: None) -> Found:
    """Has the doctor examine the queue. Returns the findings of this code, unless all is well."""

    def look(code: str) -> list[Finding]:
        return [each for each in examine(STORE) if each.code == code and each.severity != Severity.OK]

    return look
