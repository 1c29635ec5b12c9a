"""Run every check, each in a short transaction of its own; of several databases at once."""

from collections.abc import Sequence

import psycopg
from django.db import Error
from django.utils.translation import gettext

from ..conf import settings
from ..events.log_format import in_a_line
from ..operators.durations import span
from ..operators.time_budget import TimeBudget
from ..placement.at_once import read_at_once
from ..runtime.preflight import engine_problem
from ..store import Store
from .checks import CHECKS, RETIRING, Check
from .finding import Finding, Severity

CHECK_SECONDS, LEAST_SECONDS = 1.0, 0.1
"""The statement timeout of a check, and what is left of it when others were slow."""

EXAMINATION_SECONDS = 10.0
"""Seconds for all checks: the page of the doctor is one request."""

CONNECT_SECONDS, SPARE_SECONDS = 2.0, 1.0
"""Seconds to reach each of several databases, and for the last checks of the slowest."""


def examine(store: Store) -> list[Finding]:
    """Run all checks on this thread's connection. Returns the findings, the worst first, one at least for each check.

    A check that finds nothing has a finding of the severity "ok". A check that fails has a finding that says so, unless
    migrations are missing.
    """
    if problem := engine_problem(store.alias):
        return [_unusable(problem.message, problem.hint)]
    findings: list[Finding] = []
    checks = (*CHECKS, RETIRING) if store.alias in settings.retiring else CHECKS
    try:
        store.connection.ensure_connection()
        budget = TimeBudget(EXAMINATION_SECONDS, parts=len(checks), most=CHECK_SECONDS, least=LEAST_SECONDS)
        for check in checks:
            findings += _run(check, store, budget.share())
        findings = _explained(findings)
    except Error as error:
        findings.append(_out_of_reach(in_a_line(error)))
    return sorted(findings, key=lambda finding: finding.severity.rank)


def examine_at_once(aliases: Sequence[str]) -> dict[str, list[Finding]]:
    found = read_at_once(
        [alias for alias in aliases if engine_problem(alias) is None],
        examine,
        connect_seconds=CONNECT_SECONDS,
        seconds=CONNECT_SECONDS + EXAMINATION_SECONDS + SPARE_SECONDS,
    )
    return {alias: _of_one(alias, found) for alias in aliases}


def _of_one(alias: str, found: dict[str, list[Finding] | None]) -> list[Finding]:
    if alias not in found:
        return examine(Store(alias))  # which says what is wrong with the setting
    silent = gettext("It cannot be reached, or does not answer in time.")
    return found[alias] or [_out_of_reach(silent)]


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


def _out_of_reach(found: str) -> Finding:
    return _unusable(found, gettext("See whether the server runs, and whether its log says why."))


def _unusable(found: str, advice: str) -> Finding:
    return Finding(
        "database-unusable", Severity.CRITICAL, gettext("The queue's database cannot be used"), found, advice
    )
