"""A rule, its threshold, what it finds, and SQL and commands for the operator to paste."""

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
"""The start of a value in a statement: of a string, of one between dollar signs, or of a number."""

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
    """Of its address: `admin:django_skipqueue_NAME`."""
    arguments: tuple[str | int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One problem of the queue or its database. The texts are in the language that is active."""

    code: str
    """The name of its rule, by which the documentation explains the finding."""
    severity: Severity
    title: str
    found: str = ""
    """What was found, with figures."""
    advice: str = ""
    """What to do."""
    command: str = ""
    """A command of the shell that does it. A rule may give SQL, of which `examine` makes a command."""
    subject: str = ""
    """The queue, task, key or worker with the problem; an empty string: the rule finds one problem at most. For each
    subject a rule has one finding, and one incident."""
    since: datetime | None = None
    """The start of the problem; `None`: nobody knows it."""
    seconds: float | None = None
    """For how long the problem lasts, by the database's clock, if `examine` has found it and its start is known."""
    link: PageLink | None = None
    database: str = ""
    """The alias; an empty string if only one database holds queues."""

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
        """A finding whose texts are formatted with these facts, if there are any. Its rule gives it the code."""
        title, found, advice = ((text % facts if facts else text) for text in (title, found, advice))
        return cls("", severity, title, found, advice, command, subject, since, link=link)


@dataclass(frozen=True)
class Threshold:
    """A rule finds something if a number is at least this high. `SKIPQUEUE["RULES"]` changes it, by the rule's code."""

    code: str
    default: float
    unit: Literal["seconds", "share", "number"]
    has_queues: bool = False
    """Whether the setting may give a queue a threshold of its own."""

    def of(self, queue_name: str = "") -> float | None:
        """The threshold for this queue, or in general; `None`: the rule finds nothing there."""
        value = settings.rules.get(self.code, self.default)
        return value.get(queue_name, value.get("*", self.default)) if isinstance(value, dict) else value

    @property
    def least(self) -> float | None:
        """The lowest threshold of all queues; `None`: no queue has one."""
        value = settings.rules.get(self.code, self.default)
        numbers = {"*": self.default, **value}.values() if isinstance(value, dict) else [value]
        return min((number for number in numbers if number is not None), default=None)


@dataclass(frozen=True)
class Rule:
    """A condition, with the sentence, the severity and the cure of each problem that it finds."""

    code: str
    find: Callable[[Store], Iterable[Finding]]
    all_is_well: str | Promise
    """The title of the finding if there is nothing to find."""
    concerns: Callable[[str], bool] | None = None
    """Whether it looks at the database of this alias; `None`: it looks at each."""
    is_watched: bool = False
    """Whether the rule is part of the verdict, and is always watched: what it finds hurts users soon, and the rule
    takes milliseconds. The doctor applies every rule."""
    threshold: Threshold | None = None

    def findings(self, store: Store) -> list[Finding]:
        """What the rule finds; if it finds nothing, a finding that all is well."""
        found = [replace(each, code=self.code) for each in self.find(store)]
        return found or [Finding(self.code, Severity.OK, str(self.all_is_well))]


def statement(template: LiteralString, **values: object) -> str:
    """SQL for the operator to run, with these values: identifiers as they are, and other values as literals."""
    quoted = {
        name: value if isinstance(value, sql.Identifier) else sql.Literal(value) for name, value in values.items()
    }
    return sql.SQL(template).format(**quoted).as_string()


def shell_command(command: str, alias: str) -> str:
    """A command of the shell as it is; SQL as a command that runs it in psql on this database, each statement alone."""
    if not command.endswith(";"):
        return command
    database = [] if alias == DEFAULT_DB_ALIAS else ["--database", alias]
    options = [word for each in END_OF_STATEMENT.split(command) for word in ("-c", each)]
    return shlex.join(["python", "manage.py", "dbshell", *database, "--", *options])


# clock-skew → the database's time.
CLOCK = "SELECT clock_timestamp()"


def database_time(store: Store) -> datetime:
    ((now,),) = store.rows(CLOCK)
    return cast("datetime", now)


def named(text: object) -> str:
    """A text from the database, on one line; `?` for none."""
    return printable(" ".join(str(text or "").split())) or "?"


def without_values(query: str) -> str:
    """The statement of another session up to its first value: the next one may be a password."""
    shown, *rest = VALUE_IN_STATEMENT.split(query, maxsplit=1)
    return named(f"{shown}…" if rest else shown)
