"""A check of the doctor, what it has found, and SQL and commands for the operator to paste."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import LiteralString

from django.utils.functional import Promise
from psycopg import sql

from ...events.log_format import printable
from ...queue.store import Store

VALUE = re.compile(r"'|\$\w*\$|(?<![\w$])\d")
"""The start of a value in a statement: of a string, of one between dollar signs, or of a number."""


class Severity(StrEnum):
    CRITICAL = "critical"
    """Jobs do not run, or will stop running soon."""
    WARNING = "warning"
    """Something is wrong and gets worse."""
    INFO = "info"
    """Good to know at 2 a.m.; nothing has to be done."""
    OK = "ok"
    """The check found nothing."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One fact about the queue or its database. The texts are in the language that is active."""

    code: str
    """The name of its check, by which the documentation explains the finding."""
    severity: Severity
    title: str
    found: str = ""
    """What was found, with figures."""
    advice: str = ""
    """What to do."""
    command: str = ""
    """A command of the shell, or SQL, that does it and can be pasted."""

    @classmethod
    def of(
        cls,
        severity: Severity,
        title: str,
        found: str = "",
        advice: str = "",
        command: str = "",
        *,
        facts: Mapping[str, object] | None = None,
    ) -> "Finding":
        """A finding whose texts are formatted with these facts, if there are any. Its check gives it the code."""
        title, found, advice = ((text % facts if facts else text) for text in (title, found, advice))
        return cls("", severity, title, found, advice, command)


@dataclass(frozen=True)
class Check:
    """What the doctor looks at."""

    code: str
    find: Callable[[Store], Iterable[Finding]]
    all_is_well: str | Promise
    """The title of the finding if there is nothing to find."""
    concerns: Callable[[str], bool] | None = None
    """Whether it looks at the database of this alias; `None`: it looks at each."""

    def findings(self, store: Store) -> list[Finding]:
        """What it finds, or that all is well."""
        found = [replace(each, code=self.code) for each in self.find(store)]
        return found or [Finding(self.code, Severity.OK, str(self.all_is_well))]


def statement(template: LiteralString, **values: object) -> str:
    """SQL for the operator, with these values: identifiers, and others as literals. Nothing here runs it."""
    quoted = {
        name: value if isinstance(value, sql.Identifier) else sql.Literal(value) for name, value in values.items()
    }
    return sql.SQL(template).format(**quoted).as_string()


def named(text: object) -> str:
    """A text from the database, on one line; `?` for none."""
    return printable(" ".join(str(text or "").split())) or "?"


def without_values(query: str) -> str:
    """The statement of another session up to its first value: the next one may be a password."""
    shown, *rest = VALUE.split(query, maxsplit=1)
    return named(f"{shown}…" if rest else shown)
