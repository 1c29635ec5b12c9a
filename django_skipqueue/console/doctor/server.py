"""Settings and limits of the server that bite: connections, pooler, notifications, autovacuum, rights, migrations."""

from collections.abc import Iterator

from django.db import connections
from django.utils.translation import gettext
from psycopg.sql import Identifier

from ...jobs.advice import migrate_command
from ...queue.store import Store
from ...worker.preflight import missing_migrations, pools_transactions
from ..counts import grouped
from ..durations import span
from ..worker_health import Workforce
from . import sql
from .finding import Finding, Severity, named, statement, without_values

NEARLY_FULL, FULL = 0.1, 0.5
"""Shares of PostgreSQL's queue of notifications that are a warning, and critical."""

SCARCE = 0.9
"""The share of the connections in use above which the next peak fails."""

LONG_IDLE = 600.0
"""Seconds for which a session may be idle in a transaction."""


def migrations(store: Store) -> Iterator[Finding]:
    missing = missing_migrations(connections[store.alias])
    if missing:
        yield Finding(
            "migrations",
            Severity.CRITICAL,
            gettext("Migrations are missing"),
            gettext("This code needs %(names)s. A worker refuses to start without them.")
            % {"names": ", ".join(missing)},
            gettext("Apply them."),
            f"python {migrate_command(store.alias)}",
        )


def notify_queue(store: Store) -> Iterator[Finding]:
    ((share,),) = store.rows(sql.NOTIFY_QUEUE)
    if share >= NEARLY_FULL:
        yield Finding(
            "notify-queue",
            Severity.CRITICAL if share >= FULL else Severity.WARNING,
            gettext("PostgreSQL's queue of notifications fills up"),
            gettext(
                "%(percent)s %% of it are in use. A session that has called LISTEN stays in a transaction, so nothing "
                "can be removed. When the queue is full, every transaction that sends a NOTIFY fails."
            )
            % {"percent": round(share * 100)},
            gettext("Find the oldest transaction among the sessions that listen, and end its session."),
            "SELECT pid, application_name, state, xact_start, query FROM pg_stat_activity\n"
            "WHERE xact_start IS NOT NULL ORDER BY xact_start;",
        )


def connection_budget(store: Store) -> Iterator[Finding]:
    workers = Workforce.now(using=store.alias).not_dead
    supervisors = {each.name.rpartition("/")[0] for each in workers}
    needed = sum(each.slots + 1 for each in workers) + len(supervisors)
    capacity, name, used = min(store.rows(sql.CONNECTIONS))
    if needed > capacity:
        yield Finding(
            "connection-budget",
            Severity.WARNING,
            gettext("The workers may need more connections than there are"),
            gettext(
                "%(workers)s worker processes and %(supervisors)s supervisors open up to %(needed)s connections, one "
                "for each thread and one more for each process. There are %(capacity)s (%(name)s), of which %(used)s "
                "are in use now."
            )
            % {
                "workers": len(workers),
                "supervisors": len(supervisors),
                "needed": grouped(needed),
                "capacity": grouped(capacity),
                "name": name,
                "used": grouped(used),
            },
            gettext("Lower --concurrency or --processes, or raise the limit; max_connections needs a restart."),
            "ALTER SYSTEM SET max_connections = 300;",
        )


def connections_used(store: Store) -> Iterator[Finding]:
    capacity, name, used = store.rows(sql.CONNECTIONS)[0]
    if used >= capacity * SCARCE:
        yield Finding(
            "connections-used",
            Severity.CRITICAL,
            gettext("Few connections are left"),
            gettext(
                "%(used)s of %(capacity)s connections are in use (%(name)s). Without one, a worker cannot start, and a "
                "request fails."
            )
            % {"used": grouped(used), "capacity": grouped(capacity), "name": name},
            gettext("See who has them. Close what is idle, or put a pooler between the web servers and PostgreSQL."),
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity\n"
            "GROUP BY 1, 2, 3 ORDER BY 4 DESC;",
        )


def pooler(store: Store) -> Iterator[Finding]:
    if pools_transactions(store.alias):
        yield Finding(
            "pooler",
            Severity.INFO,
            gettext("A pooler in transaction mode is between here and the server"),
            gettext(
                "A notification that was sent did not arrive. The queue works, but workers find jobs by polling only, "
                "and do not prepare their statements."
            ),
            gettext(
                "For workers, let DATABASES name the server itself, or a pool in session mode: they keep their "
                "connections open anyway."
            ),
        )


def autovacuum(store: Store) -> Iterator[Finding]:
    settings = _settings(store, "autovacuum", "track_counts")
    for name in (name for name, value in settings.items() if value == "off"):
        yield Finding(
            "autovacuum",
            Severity.CRITICAL,
            gettext("Autovacuum is off"),
            gettext("%(name)s is off: nothing removes dead rows, in no table of the server.") % {"name": name},
            gettext("Turn it on."),
            statement("ALTER SYSTEM SET {name} = on;\nSELECT pg_reload_conf();", name=Identifier(name)),
        )


def idle_transactions(store: Store) -> Iterator[Finding]:
    timeout = _settings(store, "idle_in_transaction_session_timeout")["idle_in_transaction_session_timeout"]
    rows = store.rows(sql.IDLE_TRANSACTIONS, {"seconds": LONG_IDLE})
    if rows and timeout == "0":
        pid, application, user, age, query = rows[0]
        yield Finding(
            "idle-transaction",
            Severity.WARNING,
            gettext("A session is idle in a transaction, and no timeout ends it"),
            gettext(
                "Session %(pid)s (%(application)s, role %(user)s) has been idle in its transaction for %(age)s, after: "
                "%(query)s. Its locks stay. idle_in_transaction_session_timeout is 0."
            )
            % {
                "pid": pid,
                "application": named(application),
                "user": user,
                "age": span(age),
                "query": without_values(query),
            },
            gettext("End the session, and let PostgreSQL end the next one. Sessions that are open keep the old value."),
            statement(
                "SELECT pg_terminate_backend({pid});\n"
                "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '5min';",
                pid=pid,
                database=Identifier(connections[store.alias].settings_dict["NAME"]),
            ),
        )


def hidden_sessions(store: Store) -> Iterator[Finding]:
    may_see, role, others = store.rows(sql.HIDDEN_SESSIONS)[0]
    if not may_see and others:
        yield Finding(
            "hidden-sessions",
            Severity.INFO,
            gettext("The sessions of other roles are hidden"),
            gettext(
                "%(others)s sessions in this database belong to other roles than %(role)s, which may not see what they "
                "do. So their old snapshots and idle transactions are not among the findings."
            )
            % {"others": others, "role": role},
            gettext("Let a superuser grant the role the right to read statistics."),
            statement("GRANT pg_read_all_stats TO {role};", role=Identifier(role)),
        )


def track_activities(store: Store) -> Iterator[Finding]:
    if _settings(store, "track_activities")["track_activities"] == "off":
        yield Finding(
            "track-activities",
            Severity.WARNING,
            gettext("PostgreSQL does not record what its sessions do"),
            gettext("track_activities is off: old snapshots and idle transactions are not among the findings."),
            gettext("Turn it on; it costs nearly nothing."),
            "ALTER SYSTEM SET track_activities = on;\nSELECT pg_reload_conf();",
        )


def synchronous_commit(store: Store) -> Iterator[Finding]:
    if _settings(store, "synchronous_commit")["synchronous_commit"] == "off":
        yield Finding(
            "synchronous-commit",
            Severity.WARNING,
            gettext("Commits do not wait for the disk"),
            gettext(
                "synchronous_commit is off: after a crash of the server, the jobs and the outcomes of the last half "
                "second are gone. A job whose outcome is gone runs twice."
            ),
            gettext("Turn it on, at least for this database. Sessions that are open keep the old value."),
            statement(
                "ALTER DATABASE {database} SET synchronous_commit = on;",
                database=Identifier(connections[store.alias].settings_dict["NAME"]),
            ),
        )


def _settings(store: Store, *names: str) -> dict[str, str]:
    return dict(store.rows(sql.SETTINGS, {"names": list(names)}))
