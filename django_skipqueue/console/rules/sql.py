"""Every statement of the doctor and of the metrics that reads catalogs alone. Each reads a bounded number of rows.

`tables` are the names of the queue's tables; a table that does not exist is left out. `pg_partition_tree` has the
partitions of a table, and no row for a table that cannot have any.
"""

# old-session → the sessions of this database with the oldest transactions that hold a snapshot or a transaction id.
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

# unendable-session → the roles of supervisors, each with a role of worker processes whose sessions it may not end.
UNENDABLE_SESSIONS = """
SELECT DISTINCT supervisor.rolname, worker.rolname
FROM
    pg_stat_activity AS ending
    JOIN pg_roles AS supervisor ON supervisor.oid = ending.usesysid
    JOIN pg_stat_activity AS ended ON ended.datname = ending.datname
    JOIN pg_roles AS worker ON worker.oid = ended.usesysid
WHERE
    ending.datname = current_database()
    AND starts_with(ending.application_name, 'skipqueue supervisor')
    AND starts_with(ended.application_name, 'skipqueue:')
    AND NOT supervisor.rolsuper
    AND (worker.rolsuper OR NOT pg_has_role(supervisor.oid, worker.oid, 'USAGE'))
ORDER BY 1, 2
LIMIT 5
"""

# idle-transaction → the sessions of this database that have been idle in a transaction for the longest time.
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

# old-slot → the replication slots that hold back this database's dead rows.
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

# prepared-transaction → the oldest transactions of this database that are prepared and neither committed nor rolled
# back.
PREPARED_TRANSACTIONS = """
SELECT gid, owner, date_part('epoch', clock_timestamp() - prepared) AS age
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY prepared
LIMIT 5
"""

# old-standby → the standbys whose queries hold back dead rows (hot_standby_feedback).
OLD_STANDBYS = """
SELECT application_name, COALESCE(client_addr::text, ''), age(backend_xmin) AS transactions
FROM pg_stat_replication
WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > %(transactions)s
ORDER BY age(backend_xmin) DESC
LIMIT 5
"""

# dead-rows → each table and partition, its rows alive and dead, and the seconds since the last vacuum and analyze, by
# hand or not.
VACUUMS = """
SELECT
    stat.relname,
    stat.n_live_tup,
    stat.n_dead_tup,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_vacuum, stat.last_autovacuum)) AS vacuum_age,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_analyze, stat.last_autoanalyze)) AS analyze_age
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(part.relid, to_regclass(ours.name))
ORDER BY stat.n_dead_tup DESC
LIMIT 50
"""

# never-analyzed → the tables and partitions of more than so many pages without statistics for the planner.
NEVER_ANALYZED = """
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_class AS class ON class.oid = COALESCE(part.relid, to_regclass(ours.name))
WHERE class.reltuples < 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY class.relname
LIMIT 50
"""

# table-sizes → each table, with the bytes of all its files and partitions, and those of its indexes alone.
TABLE_SIZES = """
SELECT
    ours.name,
    sum(pg_total_relation_size(COALESCE(part.relid, to_regclass(ours.name))))::bigint AS total,
    sum(pg_indexes_size(COALESCE(part.relid, to_regclass(ours.name))))::bigint
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
WHERE to_regclass(ours.name) IS NOT NULL
GROUP BY ours.name
ORDER BY total DESC
LIMIT 50
"""

# index-bloat → the valid indexes of more than so many bytes, with the number of their entries at the last vacuum.
LARGE_INDEXES = """
SELECT class.relname, pg_relation_size(class.oid), class.reltuples::bigint
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(part.relid, to_regclass(ours.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE index.indisvalid AND class.reltuples >= 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY pg_relation_size(class.oid) DESC
LIMIT 50
"""

# invalid-index → the invalid indexes, except those that are being built.
INVALID_INDEXES = """
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(part.relid, to_regclass(ours.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE
    NOT index.indisvalid
    AND NOT EXISTS (
        SELECT FROM pg_stat_progress_create_index AS progress WHERE progress.relid = index.indrelid
    )
ORDER BY class.relname
LIMIT 50
"""

# transaction-ids → each table and partition, the ages of its oldest transaction id and of its oldest multixact id, and
# the ages at which autovacuum freezes. Those with the oldest come first.
TRANSACTION_IDS = """
SELECT
    class.relname,
    age(class.relfrozenxid) AS age,
    mxid_age(class.relminmxid) AS multixact_age,
    current_setting('autovacuum_freeze_max_age')::bigint,
    current_setting('autovacuum_multixact_freeze_max_age')::bigint
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_class AS class ON class.oid = COALESCE(part.relid, to_regclass(ours.name))
WHERE class.relkind = 'r'
ORDER BY GREATEST(age(class.relfrozenxid), mxid_age(class.relminmxid)) DESC
LIMIT 50
"""

# storage → each table and partition with its storage parameters.
STORAGE_PARAMETERS = """
SELECT class.relname, COALESCE(class.reloptions, '{}')
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_class AS class ON class.oid = COALESCE(part.relid, to_regclass(ours.name))
ORDER BY class.relname
LIMIT 1000
"""

# lock-waits → the sessions that use our tables and have waited for a lock for the longest time, each with those that
# block it. The process id 0 stands for a prepared transaction.
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
        SELECT held.pid, date_part('epoch', clock_timestamp() - min(held.waitstart)) AS age
        FROM pg_locks AS held
        WHERE
            NOT held.granted
            AND held.waitstart < clock_timestamp() - make_interval(secs => %(seconds)s)
            AND EXISTS (
                SELECT
                FROM pg_locks AS used, unnest(%(tables)s::text[]) AS ours (name)
                WHERE used.pid = held.pid AND used.relation = to_regclass(ours.name)
            )
        GROUP BY held.pid
        ORDER BY age DESC
        LIMIT 10
    ) AS waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
    LEFT JOIN pg_stat_activity AS waiter ON waiter.pid = waiting.pid
    LEFT JOIN pg_stat_activity AS blocker ON blocker.pid = blocking.pid
ORDER BY waiting.age DESC, blocking.pid
LIMIT 20
"""

# long-wait → how many statements of workers and supervisors on the queue's tables have taken more than a second by now.
SLOW_STATEMENTS = """
SELECT count(*)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND starts_with(application_name, 'skipqueue')
    AND state = 'active'
    AND query LIKE '%%skipqueue\\_%%'
    AND query_start < clock_timestamp() - interval '1 second'
LIMIT 1
"""

# notify-queue → the share of PostgreSQL's queue of notifications that is full, from 0 to 1.
NOTIFY_QUEUE = "SELECT pg_notification_queue_usage()"

# clock-skew → the database's time.
CLOCK = "SELECT clock_timestamp()"

# connection-budget, connections-used → the connections that this role can have open to this database, whose limit that
# is, and how many of those are used now. A role without rights sees the numbers as well.
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

# autovacuum-off, idle-transaction, track-activities, synchronous-commit → the settings of this session.
SETTINGS = """
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s::text[]) LIMIT 20
"""

# hidden-queries → whether this role sees what the sessions of others do, its name, and how many such sessions are
# connected to this database.
HIDDEN_SESSIONS = """
SELECT
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    current_user,
    count(*) FILTER (WHERE usename <> current_user)
FROM pg_stat_activity
WHERE datname = current_database()
LIMIT 1
"""


# sizes → the bytes of each index, with its table. Those of the partitions are added up in the index of their table.
INDEX_SIZES = """
SELECT ours.name, whole.relname, sum(pg_relation_size(index.indexrelid))::bigint
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(part.relid, to_regclass(ours.name))
    JOIN pg_class AS whole ON whole.oid = COALESCE(pg_partition_root(index.indexrelid), index.indexrelid)
GROUP BY ours.name, whole.relname
ORDER BY ours.name, whole.relname
LIMIT 200
"""

# vacuums → each table with its rows alive and dead, those of its partitions added up, and the seconds since the last
# vacuum of any of them, by hand or not.
DEAD_ROWS = """
SELECT
    ours.name,
    sum(stat.n_live_tup)::bigint,
    sum(stat.n_dead_tup)::bigint,
    date_part('epoch', clock_timestamp() - max(GREATEST(stat.last_vacuum, stat.last_autovacuum)))
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(part.relid, to_regclass(ours.name))
GROUP BY ours.name
ORDER BY ours.name
LIMIT 200
"""
