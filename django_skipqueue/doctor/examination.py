"""Run every check, each in a short transaction of its own."""

import psycopg
from django.db import Error
from django.utils.translation import gettext

from ..events.log_format import in_a_line
from ..operators.durations import span
from ..operators.time_budget import TimeBudget
from ..runtime.preflight import engine_problem
from ..store import Store
from .checks import CHECKS, Check
from .finding import Finding, Severity

CHECK_SECONDS, LEAST_SECONDS = 1.0, 0.1
"""The statement timeout of a check, and what is left of it when others were slow."""

EXAMINATION_SECONDS = 10.0
"""Seconds for all checks: the page of the doctor is one request."""


def examine(store: Store) -> list[Finding]:
    """Run all checks on this thread's connection. Returns the findings, the worst first, one at least for each check.

    A check that finds nothing has a finding of the severity "ok". A check that fails has a finding that says so, unless
    migrations are missing.
    """
    if problem := engine_problem(store.alias):
        return [_unusable(problem.message, problem.hint)]
    findings: list[Finding] = []
    try:
        store.connection.ensure_connection()
        budget = TimeBudget(EXAMINATION_SECONDS, parts=len(CHECKS), most=CHECK_SECONDS, least=LEAST_SECONDS)
        for check in CHECKS:
            findings += _run(check, store, budget.share())
        findings = _explained(findings)
    except Error as error:
        findings.append(
            _unusable(in_a_line(error), gettext("See whether the server runs, and whether its log says why."))
        )
    return sorted(findings, key=lambda finding: finding.severity.rank)


def _explained(findings: list[Finding]) -> list[Finding]:
    """The findings, where migrations are missing without the checks that failed: for want of tables or columns."""
    if not any(each.code == "migrations" and each.severity != Severity.OK for each in findings):
        return findings
    return [each for each in findings if each.code != "check-failed"]


def _run(check: Check, store: Store, seconds: float) -> list[Finding]:
    """The findings of one check. Raises the error of the check if the connection was lost with it."""
    try:
        with store.short_transaction(seconds):
            found = list(check.find(store))
    except Error as error:
        if not store.connection.is_usable():
            raise
        return [_failed(check, error, seconds)]
    return found or [Finding(check.code, Severity.OK, str(check.all_is_well))]


def _failed(check: Check, error: Error, seconds: float) -> Finding:
    values = {"check": check.code, "timeout": span(seconds), "error": in_a_line(error)}
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


def _unusable(found: str, advice: str) -> Finding:
    return Finding(
        "database-unusable", Severity.CRITICAL, gettext("The queue's database cannot be used"), found, advice
    )
