"""Helpers for the tests of the doctor's rules: the findings of one rule, and stores that return given rows."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.console.rules import examination
from django_skipqueue.console.rules.examination import all_rules, rules_of
from django_skipqueue.console.rules.rule import Finding, Rule, Severity
from django_skipqueue.queue.store import Store


def sql_of(command: str) -> str:
    """Return the SQL that a finding's command runs in psql."""
    program, *arguments = shlex.split(command)
    assert (program, arguments[:3]) == ("python", ["manage.py", "dbshell", "--"]), command
    assert arguments[3::2] == ["-c"] * len(arguments[4::2]), command
    return "\n".join(arguments[4::2])


def run_sql(command: str) -> None:
    """Run SQL, or the SQL in a finding's command."""
    with connection.cursor() as cursor:
        cursor.execute(sql_of(command) if command.startswith("python") else command)


FindingsOf = Callable[[str], list[Finding]]
STORE = Store("default")


class StoreOfRows(Store):
    """A store that returns the given rows for every statement."""

    def __init__(self, *rows: Sequence[Any]) -> None:
        super().__init__("default")
        self._rows = [tuple(row) for row in rows]

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the given rows, whatever the statement is."""
        return self._rows


@pytest.fixture
def findings_of(transactional_db: None) -> FindingsOf:
    """Return a function that applies the rule with this code, or all rules if no rule has this code.

    The function returns the findings with this code, except those with the severity "ok".
    """

    def find_problems(code: str) -> list[Finding]:
        def only_rules_with_code(alias: str) -> tuple[Rule, ...]:
            return tuple(rule for rule in rules_of(alias) if rule.code == code or code not in all_codes)

        all_codes = {rule.code for rule in all_rules()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(examination, "rules_of", only_rules_with_code)  # applying all rules would take far longer
            findings = examination.examine(STORE)
        return [finding for finding in findings if finding.code == code and finding.severity != Severity.OK]

    return find_problems
