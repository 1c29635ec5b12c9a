"""Rules, thresholds and findings, and functions that make SQL and commands for the operator to paste."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, LiteralString, cast

from django.db import DEFAULT_DB_ALIAS
from django.utils.functional import Promise
from psycopg import sql

from ...conf import settings
from ...events.log_format import printable
from ...queue.store import Store

VALUE_IN_STATEMENT = re.compile(r"'|\$\w*\$|(?<![\w$])\d")
"""Matches the start of a value in SQL: of a quoted string, a string between dollar signs, or a number."""

END_OF_STATEMENT = re.compile(r"(?<=;)\n")


class Severity(StrEnum):
    CRITICAL = "critical"
    """Jobs do not run, or will stop running soon."""
    WARNING = "warning"
    """Something is wrong and gets worse."""
    INFO = "info"
    """Good to know at 2 a.m.; nothing has to be done."""
    OK = "ok"
    """The rule found nothing."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True)
class PageLink:
    """A page of the admin that shows what a finding is about."""

    name: str
    """The page's URL has the name `admin:django_skipqueue_NAME`."""
    arguments: tuple[str | int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One problem of the queue or its database. The texts are in the language that is active."""

    code: str
    """The name of the rule, under which the documentation explains the finding."""
    severity: Severity
    title: str
    found: str = ""
    """What was found, with figures."""
    advice: str = ""
    """What to do."""
    command: str = ""
    """A shell command that follows the advice. A rule may give SQL, which `examine` turns into a shell command."""
    subject: str = ""
    """The queue, task, key or worker with the problem; empty if the rule finds at most one problem. A rule has one
    finding, and one incident, for each subject."""
    since: datetime | None = None
    """When the problem began; `None` if unknown."""
    seconds: float | None = None
    """How long the problem has lasted, by the database's clock. `examine` sets it if the start is known."""
    link: PageLink | None = None
    database: str = ""
    """The alias of the database; empty if only one database holds queues."""

    @property
    def is_problem(self) -> bool:
        return self.severity in (Severity.CRITICAL, Severity.WARNING)

    @classmethod
    def of(  # noqa: PLR0913 (the fields of a finding)
        cls,
        severity: Severity,
        title: str,
        found: str = "",
        advice: str = "",
        command: str = "",
        *,
        facts: Mapping[str, object] | None = None,
        subject: str = "",
        since: datetime | None = None,
        link: PageLink | None = None,
    ) -> "Finding":
        """Return a finding whose texts are formatted with these facts, if there are any. The rule adds the code."""
        title, found, advice = ((text % facts if facts else text) for text in (title, found, advice))
        return cls("", severity, title, found, advice, command, subject, since, link=link)


@dataclass(frozen=True)
class Threshold:
    """A rule finds a problem if a number is at least this high. `SKIPQUEUE["RULES"]` may contain another threshold."""

    code: str
    default: float
    unit: Literal["seconds", "share", "number"]
    has_queues: bool = False
    """Whether the setting may contain a threshold for each queue."""

    def of(self, queue_name: str = "") -> float | None:
        """Return the threshold for this queue, or the general one; `None` if the rule is off for this queue."""
        value = settings.rules.get(self.code, self.default)
        threshold: float | None = value
        if isinstance(value, dict):  # "*" stands for all queues that the setting does not name
            threshold = value.get(queue_name, value.get("*", self.default))
        return threshold

    @property
    def least(self) -> float | None:
        """The lowest threshold of all queues; `None` if no queue has one."""
        value = settings.rules.get(self.code, self.default)
        thresholds = {"*": self.default, **value}.values() if isinstance(value, dict) else [value]
        return min((number for number in thresholds if number is not None), default=None)


@dataclass(frozen=True)
class Rule:
    """A condition that the doctor checks. For each problem, it yields a finding with a severity and a cure."""

    code: str
    find: Callable[[Store], Iterable[Finding]]
    all_is_well: str | Promise
    """The title of the finding if the rule finds no problem."""
    concerns: Callable[[str], bool] | None = None
    """Returns whether the rule applies to the database with this alias; `None` if it applies to each database."""
    is_watched: bool = False
    """Whether the rule is part of the verdict, because its problems soon affect users, and it takes only milliseconds.
    The doctor applies every rule."""
    threshold: Threshold | None = None

    def findings(self, store: Store) -> list[Finding]:
        """Return the problems that the rule finds. If there are none, return a finding that all is well."""
        findings = [replace(finding, code=self.code) for finding in self.find(store)]
        return findings or [Finding(self.code, Severity.OK, str(self.all_is_well))]


def statement(template: LiteralString, **values: object) -> str:
    """Return SQL for the operator to run. Values that are identifiers are quoted as identifiers, others as literals."""
    quoted = {
        name: value if isinstance(value, sql.Identifier) else sql.Literal(value) for name, value in values.items()
    }
    return sql.SQL(template).format(**quoted).as_string()


def shell_command(command: str, alias: str) -> str:
    """Return a shell command unchanged; for SQL, a command that runs each statement in psql on this database."""
    if not command.endswith(";"):
        return command
    database = [] if alias == DEFAULT_DB_ALIAS else ["--database", alias]
    statements = END_OF_STATEMENT.split(command)
    options = [word for sql_statement in statements for word in ("-c", sql_statement)]
    return shlex.join(["python", "manage.py", "dbshell", *database, "--", *options])


# Sent by clock-skew. Returns the database's time.
CLOCK = "SELECT clock_timestamp()"


def database_time(store: Store) -> datetime:
    ((now,),) = store.rows(CLOCK)
    return cast("datetime", now)


def named(text: object) -> str:
    """Return a text from the database on one line; `?` if it is empty."""
    return printable(" ".join(str(text or "").split())) or "?"


def without_values(query: str) -> str:
    """Return the statement of another session up to its first value, because a value may be a password."""
    beginning, *rest = VALUE_IN_STATEMENT.split(query, maxsplit=1)
    return named(f"{beginning}…" if rest else beginning)
