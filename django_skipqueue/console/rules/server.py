"""Rules about the server and its sessions: settings, limits, old snapshots, waits for locks, and clocks."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...jobs.advice import migrate_command
from ...models.expressions import table_names
from ...queue.store import Store
from ...worker.preflight import missing_migrations, pools_transactions
from ..counts import grouped
from ..durations import clock_time, span
from ..queues_and_workers import Workforce
from .rule import Finding, PageLink, Rule, Severity, database_time, named, statement, without_values

NOTIFY_QUEUE_FILLS, NOTIFY_QUEUE_NEARLY_FULL = 0.1, 0.5
"""Shares of PostgreSQL's queue of notifications that are a warning, and critical."""

SCARCE_CONNECTIONS_SHARE = 0.9
"""If this share of the connections is in use, requests may fail during the next peak."""

DOCTOR_PAGE = PageLink("job_doctor")

LONG_IDLE_SECONDS = 600.0
"""A session may be idle in a transaction for this many seconds."""


def migrations(store: Store) -> Iterator[Finding]:
    missing = missing_migrations(connections[store.alias])
    if missing:
        yield Finding.of(
            Severity.CRITICAL,
            gettext("Migrations are missing"),
            gettext("This code needs %(names)s. A worker refuses to start without them."),
            gettext("Apply them."),
            f"python {migrate_command(store.alias)}",
            facts={"names": ", ".join(missing)},
        )


# Sent by notify-queue. Returns the share of PostgreSQL's queue of notifications that is full, from 0 to 1.
NOTIFY_QUEUE = "SELECT pg_notification_queue_usage()"


def notify_queue(store: Store) -> Iterator[Finding]:
    ((used_share,),) = store.rows(NOTIFY_QUEUE)
    if used_share >= NOTIFY_QUEUE_FILLS:
        yield Finding.of(
            Severity.CRITICAL if used_share >= NOTIFY_QUEUE_NEARLY_FULL else Severity.WARNING,
            gettext("PostgreSQL's queue of notifications fills up"),
            gettext(
                "%(percent)s %% of it is in use. A session that has called LISTEN stays in a transaction, so nothing "
                "can be removed. When the queue is full, every transaction that sends a NOTIFY fails."
            ),
            gettext("Find the oldest transaction among the sessions that listen, and end its session."),
            "SELECT pid, application_name, state, xact_start, query FROM pg_stat_activity\n"
            "WHERE xact_start IS NOT NULL ORDER BY xact_start;",
            facts={"percent": round(used_share * 100)},
        )


# Sent by connection-budget, connections-used. Returns the limits on the connections that this role can open to this
# database. Each row has the maximum number of connections, the name of the limit, and the number of connections in use
# that count towards it. Any role may read these numbers.
CONNECTIONS = """
SELECT capacity.number, capacity.name, capacity.used
FROM (
    SELECT
        current_setting('max_connections')::integer
            - current_setting('superuser_reserved_connections')::integer
            - COALESCE(current_setting('reserved_connections', true), '0')::integer,
        'max_connections',
        (SELECT sum(numbackends) FROM pg_stat_database)
    UNION ALL
    SELECT datconnlimit, 'CONNECTION LIMIT of the database', (
        SELECT sum(numbackends) FROM pg_stat_database WHERE datname = current_database()
    )
    FROM pg_database
    WHERE datname = current_database() AND datconnlimit >= 0
    UNION ALL
    SELECT rolconnlimit, 'CONNECTION LIMIT of the role', (
        SELECT count(*) FROM pg_stat_activity WHERE usename = current_user
    )
    FROM pg_roles
    WHERE rolname = current_user AND rolconnlimit >= 0
) AS capacity (number, name, used)
ORDER BY capacity.number - capacity.used
LIMIT 3
"""


def connection_budget(store: Store) -> Iterator[Finding]:
    workers = Workforce.now(using=store.alias).not_dead
    supervisors = {worker.name.rpartition("/")[0] for worker in workers}
    needed = sum(worker.slots + 1 for worker in workers) + len(supervisors)
    capacity, name, used = min(store.rows(CONNECTIONS))  # the lowest limit
    if needed > capacity:
        yield Finding.of(
            Severity.WARNING,
            gettext("The workers may need more connections than there are"),
            gettext(
                "%(workers)s worker processes and %(supervisors)s supervisors open up to %(needed)s connections, one "
                "for each thread and one more for each process. There are %(capacity)s (%(name)s), of which %(used)s "
                "are in use now."
            ),
            gettext("Lower --concurrency or --processes, or raise the limit; max_connections needs a restart."),
            "ALTER SYSTEM SET max_connections = 300;",
            facts={
                "workers": len(workers),
                "supervisors": len(supervisors),
                "needed": grouped(needed),
                "capacity": grouped(capacity),
                "name": name,
                "used": grouped(used),
            },
        )


def connections_used(store: Store) -> Iterator[Finding]:
    capacity, name, used = store.rows(CONNECTIONS)[0]  # the limit that leaves the fewest connections
    if used >= capacity * SCARCE_CONNECTIONS_SHARE:
        yield Finding.of(
            Severity.CRITICAL,
            gettext("Few connections are left: %(used)s of %(capacity)s are in use (%(name)s)"),
            gettext("Without a connection, a worker cannot start, and a request fails."),
            gettext("See who has them. Close what is idle, or put a pooler between the web servers and PostgreSQL."),
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity\n"
            "GROUP BY 1, 2, 3 ORDER BY 4 DESC;",
            facts={"used": grouped(used), "capacity": grouped(capacity), "name": name},
        )


def pooler(store: Store) -> Iterator[Finding]:
    if pools_transactions(store.alias):
        yield Finding.of(
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
    names_off = [name for name, value in settings.items() if value == "off"]
    for name in names_off:
        yield Finding.of(
            Severity.CRITICAL,
            gettext("Autovacuum is off"),
            gettext("%(name)s is off: nothing removes dead rows, in no table of the server."),
            gettext("Turn it on."),
            statement("ALTER SYSTEM SET {name} = on;\nSELECT pg_reload_conf();", name=Identifier(name)),
            facts={"name": name},
        )


# Sent by idle-transaction. Returns the sessions of this database that have been idle in a transaction for the longest
# time.
IDLE_TRANSACTIONS = """
SELECT
    pid,
    application_name,
    usename,
    date_part('epoch', clock_timestamp() - state_change) AS age,
    left(query, 120)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND pid <> pg_backend_pid()
    AND state LIKE 'idle in transaction%%'
    AND state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY state_change
LIMIT 5
"""


def idle_transactions(store: Store) -> Iterator[Finding]:
    timeout = _settings(store, "idle_in_transaction_session_timeout")["idle_in_transaction_session_timeout"]
    rows = store.rows(IDLE_TRANSACTIONS, {"seconds": LONG_IDLE_SECONDS})
    if rows and timeout == "0":
        pid, application, user, age, query = rows[0]
        yield Finding.of(
            Severity.WARNING,
            gettext("A session is idle in a transaction, and no timeout ends it"),
            gettext(
                "Session %(pid)s (%(application)s, role %(user)s) has been idle in its transaction for %(age)s, after: "
                "%(query)s. Its locks stay. idle_in_transaction_session_timeout is 0."
            ),
            gettext("End the session, and set the timeout, which ends the next one. Open sessions keep the old one."),
            statement(
                "SELECT pg_terminate_backend({pid});\n"
                "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '5min';",
                pid=pid,
                database=Identifier(connections[store.alias].settings_dict["NAME"]),
            ),
            facts={
                "pid": pid,
                "application": named(application),
                "user": user,
                "age": span(age),
                "query": without_values(query),
            },
        )


# Sent by hidden-sessions. Returns whether this role may see what the sessions of other roles do, the name of this role,
# and how many sessions of other roles are connected to this database.
HIDDEN_SESSIONS = """
SELECT
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    current_user,
    count(*) FILTER (WHERE usename <> current_user)
FROM pg_stat_activity
WHERE datname = current_database()
LIMIT 1
"""


def hidden_sessions(store: Store) -> Iterator[Finding]:
    may_see, role, other_sessions = store.rows(HIDDEN_SESSIONS)[0]
    if not may_see and other_sessions:
        yield Finding.of(
            Severity.INFO,
            gettext("The sessions of other roles are hidden"),
            gettext(
                "%(others)s sessions in this database belong to other roles than %(role)s, which may not see what they "
                "do. So their old snapshots and idle transactions are not among the findings."
            ),
            gettext("Let a superuser grant the role the right to read statistics."),
            statement("GRANT pg_read_all_stats TO {role};", role=Identifier(role)),
            facts={"others": other_sessions, "role": role},
        )


def track_activities(store: Store) -> Iterator[Finding]:
    if _settings(store, "track_activities")["track_activities"] == "off":
        yield Finding.of(
            Severity.WARNING,
            gettext("PostgreSQL does not record what its sessions do"),
            gettext("track_activities is off: old snapshots and idle transactions are not among the findings."),
            gettext("Turn it on; it costs nearly nothing."),
            "ALTER SYSTEM SET track_activities = on;\nSELECT pg_reload_conf();",
        )


def synchronous_commit(store: Store) -> Iterator[Finding]:
    if _settings(store, "synchronous_commit")["synchronous_commit"] == "off":
        yield Finding.of(
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


# Sent by autovacuum, idle-transaction, track-activities, synchronous-commit. Returns the settings of this session.
SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s::text[]) LIMIT 20
"""


def _settings(store: Store, *names: str) -> dict[str, str]:
    return dict(store.rows(SETTINGS, {"names": list(names)}))


OLD_TRANSACTION_SECONDS, VERY_OLD_TRANSACTION_SECONDS = 600.0, 3_600.0
"""Seconds for which a transaction may be open before it is a warning, and before it is critical."""

MANY_TRANSACTIONS = 1_000_000
"""A replication slot in use, or a standby, may lag behind by this many transactions."""


# Sent by old-session. Returns the sessions of this database with the oldest transactions that hold a snapshot or a
# transaction id.
OLD_SESSIONS = """
SELECT
    pid,
    application_name,
    usename,
    COALESCE(state, ''),
    date_part('epoch', clock_timestamp() - xact_start) AS age,
    date_part('epoch', clock_timestamp() - query_start) AS query_age,
    GREATEST(age(backend_xmin), age(backend_xid)) AS transactions,
    left(query, 120),
    xact_start,
    clock_timestamp()
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND pid <> pg_backend_pid()
    AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY xact_start
LIMIT 5
"""


def old_sessions(store: Store) -> Iterator[Finding]:
    for pid, application, user, state, age, query_age, transactions, query, since, now in store.rows(
        OLD_SESSIONS, {"seconds": OLD_TRANSACTION_SECONDS}
    ):
        yield Finding.of(
            Severity.CRITICAL if age >= VERY_OLD_TRANSACTION_SECONDS else Severity.WARNING,
            gettext("Session %(pid)s (%(application)s, %(state)s) has held an old snapshot since %(time)s"),
            gettext(
                "Session %(pid)s (%(application)s, role %(user)s, %(state)s) has had a transaction open for %(age)s, "
                "in which %(transactions)s others began. PostgreSQL keeps every row that has died since, so claims "
                "become slow. Its last statement began %(query_age)s ago: %(query)s"
            ),
            gettext("End the session, unless it is a backup or a report that has to finish."),
            statement("SELECT pg_terminate_backend({pid});", pid=pid),
            facts={
                "pid": pid,
                "application": named(application),
                "user": user,
                "state": state or "?",
                "age": span(age),
                "time": clock_time(since, now),
                "transactions": grouped(transactions),
                "query_age": span(query_age or 0.0),
                "query": without_values(query),
            },
            subject=str(pid),
            since=since,
            link=DOCTOR_PAGE,
        )


# Sent by old-slot. Returns the replication slots that hold back this database's dead rows.
OLD_SLOTS = """
SELECT slot_name, slot_type, active, age(xmin) AS transactions
FROM pg_replication_slots
WHERE
    xmin IS NOT NULL
    AND (database IS NULL OR database = current_database())
    AND (NOT active OR age(xmin) > %(transactions)s)
ORDER BY age(xmin) DESC
LIMIT 5
"""


def old_slots(store: Store) -> Iterator[Finding]:
    for name, kind, is_active, transactions in store.rows(OLD_SLOTS, {"transactions": MANY_TRANSACTIONS}):
        values = {"name": named(name), "kind": kind, "transactions": grouped(transactions)}
        if is_active:
            yield Finding.of(
                Severity.WARNING,
                gettext("A replication slot holds an old snapshot"),
                gettext(
                    "The %(kind)s slot %(name)s is %(transactions)s transactions behind. PostgreSQL keeps every row "
                    "that died since."
                ),
                gettext("Find out why its standby lags: a long query there, or a slow network."),
                "SELECT * FROM pg_stat_replication;",
                facts=values,
            )
        else:
            yield Finding.of(
                Severity.CRITICAL,
                gettext("A replication slot that nobody uses holds an old snapshot"),
                gettext(
                    "The %(kind)s slot %(name)s is not active, and %(transactions)s transactions behind. PostgreSQL "
                    "keeps every row that died since, and every file of its log, until the disk is full."
                ),
                gettext("Start its standby again, or drop the slot if the standby is gone."),
                statement("SELECT pg_drop_replication_slot({name});", name=name),
                facts=values,
            )


# Sent by prepared-transaction. Returns the oldest prepared transactions of this database, which nobody has committed or
# rolled back yet.
PREPARED_TRANSACTIONS = """
SELECT gid, owner, date_part('epoch', clock_timestamp() - prepared) AS age
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY prepared
LIMIT 5
"""


def prepared_transactions(store: Store) -> Iterator[Finding]:
    for gid, owner, age in store.rows(PREPARED_TRANSACTIONS, {"seconds": OLD_TRANSACTION_SECONDS}):
        yield Finding.of(
            Severity.CRITICAL,
            gettext("A prepared transaction was never finished"),
            gettext(
                "%(owner)s prepared the transaction %(gid)s %(age)s ago. It keeps its locks, and PostgreSQL keeps "
                "every row that died since. A restart of the server does not end it."
            ),
            gettext("Ask its transaction manager for the outcome, then commit it or roll it back."),
            statement("ROLLBACK PREPARED {gid};", gid=gid),
            facts={"owner": owner, "gid": named(gid), "age": span(age)},
        )


# Sent by old-standby. Returns the standbys whose queries hold back dead rows (hot_standby_feedback).
OLD_STANDBYS = """
SELECT application_name, COALESCE(client_addr::text, ''), age(backend_xmin) AS transactions
FROM pg_stat_replication
WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > %(transactions)s
ORDER BY age(backend_xmin) DESC
LIMIT 5
"""


def old_standbys(store: Store) -> Iterator[Finding]:
    for name, address, transactions in store.rows(OLD_STANDBYS, {"transactions": MANY_TRANSACTIONS}):
        yield Finding.of(
            Severity.WARNING,
            gettext("A query on a standby holds an old snapshot"),
            gettext(
                "The standby %(name)s (%(address)s) reports a snapshot that is %(transactions)s transactions old "
                "(hot_standby_feedback). PostgreSQL keeps every row that died since."
            ),
            gettext("On the standby, find the oldest transaction and end its session."),
            "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY xact_start;",
            facts={"name": named(name), "address": address or "?", "transactions": grouped(transactions)},
        )


LONG_LOCK_WAIT, VERY_LONG_LOCK_WAIT = 2.0, 30.0
"""Seconds for which a session may wait for a lock before it is a warning, and before it is critical."""


# Sent by lock-waits, metrics. Returns the sessions that have waited longest for a lock, among the sessions that use our
# tables. Each row also names a session that blocks the waiting session. The process id 0 stands for a prepared
# transaction.
LOCK_WAITS = """
SELECT
    waiting.pid,
    waiting.age,
    COALESCE(waiter.application_name, ''),
    COALESCE(left(waiter.query, 120), ''),
    blocking.pid AS blocking_pid,
    COALESCE(blocker.application_name, ''),
    COALESCE(blocker.state, ''),
    COALESCE(left(blocker.query, 120), ''),
    clock_timestamp()
FROM
    (
        SELECT awaited_lock.pid, date_part('epoch', clock_timestamp() - min(awaited_lock.waitstart)) AS age
        FROM pg_locks AS awaited_lock
        WHERE
            NOT awaited_lock.granted
            AND awaited_lock.waitstart < clock_timestamp() - make_interval(secs => %(seconds)s)
            AND EXISTS (
                SELECT
                FROM pg_locks AS table_lock, unnest(%(tables)s::text[]) AS queue_table (name)
                WHERE table_lock.pid = awaited_lock.pid AND table_lock.relation = to_regclass(queue_table.name)
            )
        GROUP BY awaited_lock.pid
        ORDER BY age DESC
        LIMIT 10
    ) AS waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
    LEFT JOIN pg_stat_activity AS waiter ON waiter.pid = waiting.pid
    LEFT JOIN pg_stat_activity AS blocker ON blocker.pid = blocking.pid
ORDER BY waiting.age DESC, blocking.pid
LIMIT 20
"""


def lock_waits(store: Store) -> Iterator[Finding]:
    """Find sessions that block other sessions, each with the session that has waited longest.

    A session that blocks and also waits is left out, unless all sessions do, because ending it would not help.
    """
    rows = store.rows(LOCK_WAITS, {"tables": table_names(), "seconds": LONG_LOCK_WAIT})
    waiting_pids = {waiting_pid for waiting_pid, *_columns in rows}
    rows_by_blocker: dict[int, list[tuple[Any, ...]]] = {}
    for row in [row for row in rows if row[4] not in waiting_pids] or rows:  # row[4] is the `blocking_pid`
        rows_by_blocker.setdefault(row[4], []).append(row)
    for rows in rows_by_blocker.values():
        pid, age, application, query, blocker, *blocker_columns, now = rows[0]  # the session that has waited longest
        holder, state, last_query = blocker_columns
        since = now - timedelta(seconds=age)
        title = ngettext(
            "Session %(blocker)s (%(holder)s, %(state)s) locks the queue's tables: %(number)s session has waited since "
            "%(time)s",
            "Session %(blocker)s (%(holder)s, %(state)s) locks the queue's tables: %(number)s sessions have waited "
            "since %(time)s",
            len(rows),
        )
        command = statement("SELECT pg_terminate_backend({pid});", pid=blocker)
        if not blocker:
            title = ngettext(
                "A prepared transaction locks the queue's tables: %(number)s session has waited since %(time)s",
                "A prepared transaction locks the queue's tables: %(number)s sessions have waited since %(time)s",
                len(rows),
            )
            command = "SELECT * FROM pg_prepared_xacts;"
        yield Finding.of(
            Severity.CRITICAL if age >= VERY_LONG_LOCK_WAIT else Severity.WARNING,
            title,
            gettext(
                "Session %(pid)s (%(application)s) has waited for %(age)s, with: %(query)s. The last statement of the "
                "session that blocks it: %(last_query)s"
            ),
            gettext("End the transaction that holds the lock, unless it ends soon."),
            command,
            facts={
                "blocker": blocker,
                "holder": named(holder),
                "state": state or "?",
                "number": len(rows),
                "time": clock_time(since, now),
                "pid": pid,
                "application": named(application),
                "age": span(age),
                "query": without_values(query),
                "last_query": without_values(last_query),
            },
            subject=str(blocker or ""),
            since=since,
            link=DOCTOR_PAGE,
        )


LARGEST_CLOCK_SKEW = 2.0
"""Seconds by which the clock of this process may differ from the database's."""


def clock_skew(store: Store) -> Iterator[Finding]:
    before = datetime.now(UTC)
    clock = database_time(store)
    after = datetime.now(UTC)
    skew = max((before - clock).total_seconds(), (clock - after).total_seconds())
    if skew > LARGEST_CLOCK_SKEW:
        yield Finding.of(
            Severity.WARNING,
            gettext("This machine's clock is wrong, or the database's"),
            gettext(
                "They differ by %(skew)s: here it is %(here)s, there %(there)s. The queue uses the database's clock "
                "alone, but a job with a run_after that was computed here starts too early or too late."
            ),
            gettext("Synchronize both clocks (NTP)."),
            "timedatectl status",
            facts={"skew": span(skew), "here": f"{after:%H:%M:%S}", "there": f"{clock:%H:%M:%S}"},
        )


MIGRATIONS = Rule("migrations", migrations, _("All migrations are applied"))
"""This rule comes first, because it says why other rules fail."""

SERVER_RULES = (
    Rule("lock-waits", lock_waits, _("Nobody waits for a lock on the queue's tables"), is_watched=True),
    Rule("old-session", old_sessions, _("No session holds an old snapshot"), is_watched=True),
    Rule("old-slot", old_slots, _("No replication slot holds an old snapshot")),
    Rule("prepared-transaction", prepared_transactions, _("No prepared transaction is left over")),
    Rule("old-standby", old_standbys, _("No standby holds an old snapshot")),
    Rule("idle-transaction", idle_transactions, _("No session is idle in an old transaction")),
    Rule("notify-queue", notify_queue, _("PostgreSQL's queue of notifications is nearly empty")),
    Rule("connection-budget", connection_budget, _("There are connections for all workers")),
    Rule("connections-used", connections_used, _("Connections are left"), is_watched=True),
    Rule("pooler", pooler, _("Notifications can arrive")),
    Rule("autovacuum", autovacuum, _("Autovacuum is on")),
    Rule("synchronous-commit", synchronous_commit, _("Commits wait for the disk")),
    Rule("track-activities", track_activities, _("PostgreSQL records what its sessions do")),
    Rule("hidden-sessions", hidden_sessions, _("No session is hidden")),
    Rule("clock-skew", clock_skew, _("The clocks agree")),
)
