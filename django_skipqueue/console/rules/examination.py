"""The table of rules. Apply rules, each in a short transaction of its own; to several databases at once."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import psycopg
from django.db import Error
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...events.log_format import in_a_line
from ...queue.session import short_transaction
from ...queue.store import Store
from ...worker.preflight import engine_problem
from ..at_once import read_at_once
from ..counts import TimeBudget
from ..durations import span
from ..parts import consoles
from . import jobs_and_workers, locks, server, tables
from .rule import Finding, Rule, Severity

MIGRATIONS = Rule("migrations", server.migrations, _("All migrations are applied"))

RULES = (
    MIGRATIONS,
    Rule("no-worker", jobs_and_workers.no_worker, _("Workers are alive"), is_watched=True),
    Rule(
        "queue-without-worker",
        jobs_and_workers.queues_without_worker,
        _("Every queue with jobs has a worker"),
        is_watched=True,
    ),
    Rule(
        "no-free-slot",
        jobs_and_workers.no_free_slot,
        _("No job waits for the end of long ones"),
        is_watched=True,
        threshold=jobs_and_workers.LONG_HOLD,
    ),
    Rule(
        "paused-queue",
        jobs_and_workers.paused_queues,
        _("No job waits in a paused queue"),
        is_watched=True,
        threshold=jobs_and_workers.LONG_PAUSE,
    ),
    Rule("late-worker", jobs_and_workers.late_workers, _("No worker is late"), is_watched=True),
    Rule("dead-worker", jobs_and_workers.dead_workers, _("No worker is dead"), is_watched=True),
    Rule(
        "unendable-session",
        jobs_and_workers.unendable_sessions,
        _("Every supervisor may end the sessions of dead workers"),
    ),
    Rule("orphaned-job", jobs_and_workers.orphaned_jobs, _("Every running job has a worker"), is_watched=True),
    Rule(
        "unknown-task",
        jobs_and_workers.unknown_tasks,
        _("The tasks of the next jobs are registered"),
        is_watched=True,
    ),
    Rule("long-job", jobs_and_workers.long_jobs, _("No job has run for more than an hour")),
    Rule(
        "long-wait",
        jobs_and_workers.long_waits,
        _("No job has waited for long"),
        is_watched=True,
        threshold=jobs_and_workers.WAITED,
    ),
    Rule("prune-lag", jobs_and_workers.prune_lag, _("Finished jobs are deleted in time")),
    Rule(
        "locked-rows",
        locks.locked_rows,
        _("No session keeps the next jobs locked"),
        is_watched=True,
        threshold=locks.LOCKED_FOR,
    ),
    Rule("lock-waits", server.lock_waits, _("Nobody waits for a lock on the queue's tables"), is_watched=True),
    Rule("old-session", server.old_sessions, _("No session holds an old snapshot"), is_watched=True),
    Rule("old-slot", server.old_slots, _("No replication slot holds an old snapshot")),
    Rule("prepared-transaction", server.prepared_transactions, _("No prepared transaction is left over")),
    Rule("old-standby", server.old_standbys, _("No standby holds an old snapshot")),
    Rule("idle-transaction", server.idle_transactions, _("No session is idle in an old transaction")),
    Rule("dead-rows", tables.dead_rows, _("Autovacuum keeps up with dead rows")),
    Rule("never-analyzed", tables.never_analyzed, _("The planner has statistics")),
    Rule("invalid-index", tables.invalid_indexes, _("Every index is valid")),
    Rule("index-bloat", tables.bloated_indexes, _("No index is mostly empty")),
    Rule("transaction-ids", tables.transaction_ids, _("Transaction ids are frozen in time")),
    Rule("storage-parameters", tables.storage_parameters, _("The tables have their storage parameters")),
    Rule("table-sizes", tables.table_sizes, _("Sizes of the tables")),
    Rule("database-load", tables.database_load, _("The queue's part of the database's load")),
    Rule("notify-queue", server.notify_queue, _("PostgreSQL's queue of notifications is nearly empty")),
    Rule("connection-budget", server.connection_budget, _("There are connections for all workers")),
    Rule("connections-used", server.connections_used, _("Connections are left"), is_watched=True),
    Rule("pooler", server.pooler, _("Notifications can arrive")),
    Rule("autovacuum", server.autovacuum, _("Autovacuum is on")),
    Rule("synchronous-commit", server.synchronous_commit, _("Commits wait for the disk")),
    Rule("track-activities", server.track_activities, _("PostgreSQL records what its sessions do")),
    Rule("hidden-sessions", server.hidden_sessions, _("No session is hidden")),
    Rule("clock-skew", jobs_and_workers.clock_skew, _("The clocks agree")),
)
"""The rules of the console for every database. Findings of one severity keep this order."""

CHECK_SECONDS, LEAST_SECONDS = 1.0, 0.1
"""The statement timeout of a rule, and what is left of it when others were slow."""

EXAMINATION_SECONDS, VERDICT_SECONDS = 10.0, 1.0
"""Seconds for all rules, since the page of the doctor is one request; and for those of the verdict."""

CONNECT_SECONDS, SPARE_SECONDS = 2.0, 1.0
"""Seconds to reach each of several databases, and for the last rules of the slowest."""


def all_rules() -> tuple[Rule, ...]:
    """The rules of the console and of the parts."""
    return (*RULES, *(rule for console in consoles() for rule in console.rules))


def rules_of(alias: str) -> tuple[Rule, ...]:
    """The rules for a database, without those that the setting turns off."""
    concerned = (rule for rule in all_rules() if rule.concerns is None or rule.concerns(alias))
    return tuple(rule for rule in concerned if settings.rules.get(rule.code, rule) is not None)


def examine(store: Store, *, only_watched: bool = False, seconds: float | None = None) -> list[Finding]:
    """Apply the rules on this thread's connection. Returns the findings, the worst first, one at least for each rule.

    A rule that finds nothing has a finding of the severity "ok". A rule that fails has a finding that says so, unless
    migrations are missing. `seconds`: for all rules; each has a tenth of a second or more.
    """
    if problem := engine_problem(store.alias):
        return _of(store.alias, [_unusable(problem.message, problem.hint)])
    findings: list[Finding] = []
    rules = [rule for rule in rules_of(store.alias) if rule.is_watched or not only_watched]
    seconds = seconds or (VERDICT_SECONDS if only_watched else EXAMINATION_SECONDS)
    least = min(LEAST_SECONDS, seconds / (2 * len(rules) or 1))
    try:
        store.connection.ensure_connection()
        budget = TimeBudget(seconds, parts=len(rules), most=min(CHECK_SECONDS, seconds / 2), least=least)
        for rule in rules:
            findings += _apply(rule, store, budget.share())
        if any(each.code == "check-failed" for each in findings):
            missing = _apply(MIGRATIONS, store, CHECK_SECONDS)
            if missing[0].is_problem:  # what failed, failed for want of tables or columns
                ours = ("check-failed", MIGRATIONS.code)
                findings = [*missing, *(each for each in findings if each.code not in ours)]
        findings = _with_since(store, findings)
    except Error as error:
        findings.append(_unusable(in_a_line(error)))
    return _of(store.alias, findings)


def examine_at_once(aliases: Sequence[str]) -> list[Finding]:
    """The findings of these databases, the worst first; of the same severity, those of each database together."""
    found = read_at_once(
        [alias for alias in aliases if engine_problem(alias) is None],
        examine,
        connect_seconds=CONNECT_SECONDS,
        seconds=CONNECT_SECONDS + EXAMINATION_SECONDS + SPARE_SECONDS,
    )
    silence = gettext("It cannot be reached, or does not answer in time.")
    # of a database that was not asked, `examine` says what is wrong with its setting
    of_all = (
        found[alias] or _of(alias, [_unusable(silence)]) if alias in found else examine(Store(alias))
        for alias in aliases
    )
    return _by_weight(each for findings in of_all for each in findings)


def _of(alias: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings with their database, if there are several, the worst first."""
    return _by_weight(replace(each, database=alias if settings.serves_several else "") for each in findings)


def _by_weight(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity.rank)


def _with_since(store: Store, findings: list[Finding]) -> list[Finding]:
    """The findings, each with the time since when a part knows of it, if its rule does not know that."""
    if all(each.since or not each.is_problem for each in findings):
        return findings
    with short_transaction(store, CHECK_SECONDS):
        known = {key: at for each in consoles() if each.known_since for key, at in each.known_since(store).items()}
    return [each if each.since else replace(each, since=known.get((each.code, each.subject))) for each in findings]


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
