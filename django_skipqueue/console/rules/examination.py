"""Apply the rules, each in a short transaction of its own; to several databases at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import psycopg
from django.db import Error
from django.utils.translation import gettext

from ...conf import settings
from ...events.log_format import in_a_line
from ...queue.session import short_transaction
from ...queue.store import Store
from ...worker.preflight import engine_problem
from ..at_once import read_at_once
from ..counts import TimeBudget
from ..durations import span
from ..parts import consoles
from .jobs_and_workers import JOB_AND_WORKER_RULES
from .locks import LOCK_RULES
from .rule import Finding, Rule, Severity, database_time, shell_command
from .server import MIGRATIONS, SERVER_RULES
from .tables import TABLE_RULES

RULES = (MIGRATIONS, *JOB_AND_WORKER_RULES, *LOCK_RULES, *SERVER_RULES, *TABLE_RULES)
"""The rules of the console. Findings of one severity keep this order."""

RULE_SECONDS, LEAST_RULE_SECONDS = 1.0, 0.1
"""The statement timeout of a rule, and the least timeout that it has when other rules were slow."""

EXAMINATION_SECONDS, VERDICT_SECONDS = 10.0, 1.0
"""Seconds for all rules, since the page of the doctor is one request; and for the rules of the verdict."""

EXAMINATION_CONNECT_SECONDS, VERDICT_CONNECT_SECONDS, EXAMINATION_SPARE_SECONDS = 2.0, 0.5, 1.0
"""Seconds to reach each of several databases, for all rules or for the verdict; and for the last rules of the slowest
database."""


def all_rules() -> tuple[Rule, ...]:
    """The rules of the console and of the parts."""
    return (*RULES, *(rule for console in consoles() for rule in console.rules))


def rules_of(alias: str) -> tuple[Rule, ...]:
    """The rules for a database, without the rules that the setting turns off."""
    concerned = (rule for rule in all_rules() if rule.concerns is None or rule.concerns(alias))
    return tuple(rule for rule in concerned if settings.rules.get(rule.code, rule) is not None)


def examine(store: Store, *, only_watched: bool = False, seconds: float | None = None) -> list[Finding]:
    """Apply the rules on this thread's connection. Returns the findings, the worst first, one at least for each rule.

    If a rule finds nothing, it yields a finding of the severity "ok". If a rule fails, its finding says so, unless
    migrations are missing. `seconds`: for all rules; each has a tenth of a second or more.
    """
    *_, findings = examine_in_steps(store, only_watched=only_watched, seconds=seconds)
    return findings or []


def examine_in_steps(
    store: Store, *, only_watched: bool = False, seconds: float | None = None
) -> Iterator[list[Finding] | None]:
    """Do what `examine` does. Yields `None` after each rule, for the caller to do other work; then the findings."""
    if problem := engine_problem(store.alias):
        yield _of(store.alias, [_unusable(problem.message, problem.hint)])
        return
    findings: list[Finding] = []
    rules = [rule for rule in rules_of(store.alias) if rule.is_watched or not only_watched]
    seconds = seconds or (VERDICT_SECONDS if only_watched else EXAMINATION_SECONDS)
    least = min(LEAST_RULE_SECONDS, seconds / (2 * len(rules) or 1))
    try:
        store.connection.ensure_connection()
        budget = TimeBudget(seconds, parts=len(rules), most=min(RULE_SECONDS, seconds / 2), least=least)
        for rule in rules:
            findings += _apply(rule, store, budget.share())
            yield None
        if any(each.code == "check-failed" for each in findings):
            missing = _apply(MIGRATIONS, store, RULE_SECONDS)
            if missing[0].is_problem:  # what failed, failed for want of tables or columns
                ours = ("check-failed", MIGRATIONS.code)
                findings = [*missing, *(each for each in findings if each.code not in ours)]
        findings = _with_since(store, findings)
    except Error as error:
        findings.append(_unusable(in_a_line(error)))
    yield _of(store.alias, findings)


def examine_at_once(aliases: Sequence[str], *, only_watched: bool = False) -> list[Finding]:
    """The findings of these databases, the worst first; of one severity, the findings of each database together."""
    connect_seconds = VERDICT_CONNECT_SECONDS if only_watched else EXAMINATION_CONNECT_SECONDS
    seconds = VERDICT_SECONDS if only_watched else EXAMINATION_SECONDS
    found = read_at_once(
        [alias for alias in aliases if engine_problem(alias) is None],
        partial(examine, only_watched=only_watched),
        connect_seconds=connect_seconds,
        seconds=connect_seconds + seconds + EXAMINATION_SPARE_SECONDS,
    )
    silence = gettext("It cannot be reached, or does not answer in time.")
    # of a database that was not asked, `examine` says what is wrong with its setting
    of_all = (
        found[alias] or _of(alias, [_unusable(silence)]) if alias in found else examine(Store(alias))
        for alias in aliases
    )
    return _by_weight(each for findings in of_all for each in findings)


def _of(alias: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the worst first, with commands of the shell.

    If several databases hold queues, each finding names its database.
    """
    database = alias if settings.serves_several else ""
    return _by_weight(replace(each, database=database, command=shell_command(each.command, alias)) for each in findings)


def _by_weight(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity.rank)


def _with_since(store: Store, findings: list[Finding]) -> list[Finding]:
    """The findings. If a rule does not know since when, the finding has the time since when a part knows of it.

    The database's clock says how long a problem lasts, because the clock of this machine may differ.
    """
    problems = [each for each in findings if each.is_problem]
    if not problems:
        return findings
    known: dict[tuple[str, str], datetime] = {}
    with short_transaction(store, RULE_SECONDS):
        if not all(each.since for each in problems):
            known = {key: at for each in consoles() if each.known_since for key, at in each.known_since(store).items()}
        now = database_time(store)
    dated = [each if each.since else replace(each, since=known.get((each.code, each.subject))) for each in findings]
    return [replace(each, seconds=_passed(each.since, now)) if each.since else each for each in dated]


def _passed(since: datetime, now: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)


def _apply(rule: Rule, store: Store, seconds: float) -> list[Finding]:
    """The findings of one rule. Raises the error of the rule if the connection was lost with it."""
    try:
        with short_transaction(store, seconds):
            return rule.findings(store)
    except Error as error:
        if not store.connection.is_usable():
            raise
        return [replace(_failed(rule, error, seconds), subject=rule.code)]


def _failed(rule: Rule, error: Error, seconds: float) -> Finding:
    values = {"check": rule.code, "timeout": span(seconds), "error": in_a_line(error)}
    if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
        return Finding(
            "check-timed-out",
            Severity.WARNING,
            gettext("The check %(check)s took too long") % values,
            gettext("It was cancelled after %(timeout)s. The server is busy, or somebody has locked a table.") % values,
            gettext("Look at the other findings, then try again."),
        )
    if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
        return Finding(
            "check-not-allowed",
            Severity.INFO,
            gettext("The check %(check)s is not allowed") % values,
            gettext("The role of this connection lacks a right: %(error)s") % values,
            gettext("Let a superuser grant it."),
        )
    return Finding(
        "check-failed",
        Severity.WARNING,
        gettext("The check %(check)s failed") % values,
        values["error"],
        gettext("Look at the other findings. If none explains it, report it as a bug."),
    )


def _unusable(found: str, advice: str = "") -> Finding:
    advice = advice or gettext("See whether the server runs, and whether its log says why.")
    title = gettext("The queue's database cannot be used")
    return Finding("database-unusable", Severity.CRITICAL, title, found, advice)
