"""Apply the rules, each in a short transaction of its own. Several databases are examined at the same time."""

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
"""The statement timeout of a rule, and its shortest timeout if earlier rules were slow."""

EXAMINATION_SECONDS, VERDICT_SECONDS = 10.0, 1.0
"""All rules of the doctor may take the first number of seconds, and the rules of the verdict the second."""

EXAMINATION_CONNECT_SECONDS, VERDICT_CONNECT_SECONDS, EXAMINATION_SPARE_SECONDS = 2.0, 0.5, 1.0
"""If there are several databases: the seconds to connect to each of them before the doctor applies all rules; the same
for the verdict; and the extra seconds in which the slowest database may finish its last rules."""


def all_rules() -> tuple[Rule, ...]:
    """Return the rules of the console and of the parts, which are optional features."""
    return (*RULES, *(rule for console in consoles() for rule in console.rules))


def rules_of(alias: str) -> tuple[Rule, ...]:
    """Return the rules for a database, except the rules that the setting `RULES` turns off."""
    rules = (rule for rule in all_rules() if rule.concerns is None or rule.concerns(alias))
    return tuple(rule for rule in rules if settings.rules.get(rule.code, rule) is not None)


def examine(store: Store, *, only_watched: bool = False, seconds: float | None = None) -> list[Finding]:
    """Apply the rules on this thread's connection. Return the findings, the worst first, at least one for each rule.

    If a rule finds no problem, its finding has the severity "ok". If a rule fails, its finding says so, unless
    migrations are missing. `seconds` is the time for all rules together.
    """
    *_, findings = examine_in_steps(store, only_watched=only_watched, seconds=seconds)  # all steps, then the findings
    return findings or []


def examine_in_steps(
    store: Store, *, only_watched: bool = False, seconds: float | None = None
) -> Iterator[list[Finding] | None]:
    """Do what `examine` does in steps, between which the caller can do other work.

    Yield `None` after each rule, and finally the findings.
    """
    if problem := engine_problem(store.alias):
        yield _with_commands(store.alias, [_unusable_database_finding(problem.message, problem.hint)])
        return
    findings: list[Finding] = []
    rules = [rule for rule in rules_of(store.alias) if rule.is_watched or not only_watched]
    seconds = seconds or (VERDICT_SECONDS if only_watched else EXAMINATION_SECONDS)
    # At most half of the time is reserved for later rules. Without rules, nothing is divided.
    least_rule_seconds = min(LEAST_RULE_SECONDS, seconds / (2 * max(len(rules), 1)))
    try:
        store.connection.ensure_connection()
        budget = TimeBudget(seconds, steps=len(rules), most=min(RULE_SECONDS, seconds / 2), least=least_rule_seconds)
        for rule in rules:
            findings += _apply(rule, store, budget.next_seconds())
            yield None
        if any(finding.code == "check-failed" for finding in findings):
            migration_findings = _apply(MIGRATIONS, store, RULE_SECONDS)
            if migration_findings[0].is_problem:  # the other rules failed because tables or columns are missing
                replaced_codes = ("check-failed", MIGRATIONS.code)
                findings = [
                    *migration_findings,
                    *(finding for finding in findings if finding.code not in replaced_codes),
                ]
        findings = _with_since(store, findings)
    except Error as error:
        findings.append(_unusable_database_finding(in_a_line(error)))
    yield _with_commands(store.alias, findings)


def examine_at_once(aliases: Sequence[str], *, only_watched: bool = False) -> list[Finding]:
    """Return the findings of these databases, sorted by severity, then by database."""
    connect_seconds = VERDICT_CONNECT_SECONDS if only_watched else EXAMINATION_CONNECT_SECONDS
    seconds = VERDICT_SECONDS if only_watched else EXAMINATION_SECONDS
    findings_by_alias = read_at_once(
        [alias for alias in aliases if engine_problem(alias) is None],
        partial(examine, only_watched=only_watched),
        connect_seconds=connect_seconds,
        seconds=connect_seconds + seconds + EXAMINATION_SPARE_SECONDS,
    )
    no_answer = gettext("It cannot be reached, or does not answer in time.")
    # A database with a wrong setting was not read, and `examine` returns what is wrong with the setting.
    findings_of_databases = (
        findings_by_alias[alias] or _with_commands(alias, [_unusable_database_finding(no_answer)])
        if alias in findings_by_alias
        else examine(Store(alias))
        for alias in aliases
    )
    return _by_severity(finding for findings in findings_of_databases for finding in findings)


def _with_commands(alias: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the worst first, with shell commands instead of SQL.

    If several databases hold queues, each finding names its database.
    """
    database = alias if settings.serves_several else ""
    return _by_severity(
        replace(finding, database=database, command=shell_command(finding.command, alias)) for finding in findings
    )


def _by_severity(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity.rank)


def _with_since(store: Store, findings: list[Finding]) -> list[Finding]:
    """Add to the findings since when the problems exist, and for how many seconds.

    If the rule does not know since when a problem exists, a part may know it. The duration is measured by the
    database's clock, because the clock of this machine may differ.
    """
    problems = [finding for finding in findings if finding.is_problem]
    if not problems:
        return findings
    known_since: dict[tuple[str, str], datetime] = {}
    with short_transaction(store, RULE_SECONDS):
        if not all(problem.since for problem in problems):
            known_since = {
                code_and_subject: since
                for part in consoles()
                if part.known_since
                for code_and_subject, since in part.known_since(store).items()
            }
        now = database_time(store)
    dated_findings = [
        finding if finding.since else replace(finding, since=known_since.get((finding.code, finding.subject)))
        for finding in findings
    ]
    return [
        replace(finding, seconds=_seconds_since(finding.since, now)) if finding.since else finding
        for finding in dated_findings
    ]


def _seconds_since(since: datetime, now: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)


def _apply(rule: Rule, store: Store, seconds: float) -> list[Finding]:
    """Return the findings of one rule. Raise the rule's error if the connection was lost."""
    try:
        with short_transaction(store, seconds):
            return rule.findings(store)
    except Error as error:
        if not store.connection.is_usable():
            raise
        return [replace(_failed_rule_finding(rule, error, seconds), subject=rule.code)]


def _failed_rule_finding(rule: Rule, error: Error, seconds: float) -> Finding:
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


def _unusable_database_finding(found: str, advice: str = "") -> Finding:
    advice = advice or gettext("See whether the server runs, and whether its log says why.")
    title = gettext("The queue's database cannot be used")
    return Finding("database-unusable", Severity.CRITICAL, title, found, advice)
