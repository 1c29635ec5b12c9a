"""Who keeps PostgreSQL from removing dead rows: sessions, replication slots, prepared transactions and standbys."""

from collections.abc import Iterator

from django.utils.translation import gettext

from ...queue.store import Store
from ..counts import grouped
from ..durations import span
from . import sql
from .finding import Finding, Severity, named, statement, without_values

OLD, VERY_OLD = 600.0, 3_600.0
"""Seconds for which a transaction may be open before it is a warning, and before it is critical."""

MANY_TRANSACTIONS = 1_000_000
"""How many transactions a slot or a standby in use may lag behind."""


def old_sessions(store: Store) -> Iterator[Finding]:
    for pid, application, user, state, age, query_age, transactions, query in store.rows(
        sql.OLD_SESSIONS, {"seconds": OLD}
    ):
        yield Finding(
            "old-session",
            Severity.CRITICAL if age >= VERY_OLD else Severity.WARNING,
            gettext("A session holds an old snapshot"),
            gettext(
                "Session %(pid)s (%(application)s, role %(user)s, %(state)s) has had a transaction open for %(age)s, "
                "in which %(transactions)s others began. PostgreSQL keeps every row that has died since, so claims "
                "become slow. Its last statement began %(query_age)s ago: %(query)s"
            )
            % {
                "pid": pid,
                "application": named(application),
                "user": user,
                "state": state or "?",
                "age": span(age),
                "transactions": grouped(transactions),
                "query_age": span(query_age or 0.0),
                "query": without_values(query),
            },
            gettext("End the session, unless it is a backup or a report that has to finish."),
            statement("SELECT pg_terminate_backend({pid});", pid=pid),
        )


def old_slots(store: Store) -> Iterator[Finding]:
    for name, kind, is_active, transactions in store.rows(sql.OLD_SLOTS, {"transactions": MANY_TRANSACTIONS}):
        values = {"name": named(name), "kind": kind, "transactions": grouped(transactions)}
        if is_active:
            yield Finding(
                "old-slot",
                Severity.WARNING,
                gettext("A replication slot holds an old snapshot"),
                gettext(
                    "The %(kind)s slot %(name)s is %(transactions)s transactions behind. PostgreSQL keeps every row "
                    "that died since."
                )
                % values,
                gettext("Find out why its standby lags: a long query there, or a slow network."),
                "SELECT * FROM pg_stat_replication;",
            )
        else:
            yield Finding(
                "old-slot",
                Severity.CRITICAL,
                gettext("A replication slot that nobody uses holds an old snapshot"),
                gettext(
                    "The %(kind)s slot %(name)s is not active, and %(transactions)s transactions behind. PostgreSQL "
                    "keeps every row that died since, and every file of its log, until the disk is full."
                )
                % values,
                gettext("Start its standby again, or drop the slot if the standby is gone."),
                statement("SELECT pg_drop_replication_slot({name});", name=name),
            )


def prepared_transactions(store: Store) -> Iterator[Finding]:
    for gid, owner, age in store.rows(sql.PREPARED_TRANSACTIONS, {"seconds": OLD}):
        yield Finding(
            "prepared-transaction",
            Severity.CRITICAL,
            gettext("A prepared transaction was never finished"),
            gettext(
                "%(owner)s prepared the transaction %(gid)s %(age)s ago. It keeps its locks, and PostgreSQL keeps "
                "every row that died since. A restart of the server does not end it."
            )
            % {"owner": owner, "gid": named(gid), "age": span(age)},
            gettext("Ask its transaction manager for the outcome, then commit it or roll it back."),
            statement("ROLLBACK PREPARED {gid};", gid=gid),
        )


def old_standbys(store: Store) -> Iterator[Finding]:
    for name, address, transactions in store.rows(sql.OLD_STANDBYS, {"transactions": MANY_TRANSACTIONS}):
        yield Finding(
            "old-standby",
            Severity.WARNING,
            gettext("A query on a standby holds an old snapshot"),
            gettext(
                "The standby %(name)s (%(address)s) reports a snapshot that is %(transactions)s transactions old "
                "(hot_standby_feedback). PostgreSQL keeps every row that died since."
            )
            % {"name": named(name), "address": address or "?", "transactions": grouped(transactions)},
            gettext("On the standby, find the oldest transaction and end its session."),
            "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY xact_start;",
        )
