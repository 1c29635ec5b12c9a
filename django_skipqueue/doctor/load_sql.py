"""Every statement on how much of the database's load is the queue's, as a literal. Each reads views of statistics."""

# database-load, metrics → the rows written, the pages read, and the pages found in memory since the statistics were
# reset: of the queue's tables with their partitions, indexes and TOAST tables, and of the whole database.
TABLE_LOAD = """
SELECT
    COALESCE(sum(stat.n_tup_ins + stat.n_tup_upd + stat.n_tup_del), 0)::bigint AS written,
    COALESCE(sum(
        COALESCE(io.heap_blks_read, 0) + COALESCE(io.idx_blks_read, 0)
        + COALESCE(io.toast_blks_read, 0) + COALESCE(io.tidx_blks_read, 0)
    ), 0)::bigint AS pages_read,
    COALESCE(sum(
        COALESCE(io.heap_blks_hit, 0) + COALESCE(io.idx_blks_hit, 0)
        + COALESCE(io.toast_blks_hit, 0) + COALESCE(io.tidx_blks_hit, 0)
    ), 0)::bigint AS pages_hit,
    min(whole.tup_inserted + whole.tup_updated + whole.tup_deleted) AS all_written,
    min(whole.blks_read) AS all_pages_read,
    min(whole.blks_hit) AS all_pages_hit
FROM
    pg_stat_database AS whole
    CROSS JOIN unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(part.relid, to_regclass(ours.name))
    LEFT JOIN pg_statio_all_tables AS io ON io.relid = stat.relid
WHERE whole.datname = current_database()
LIMIT 1
"""

# database-load, metrics → the schema of the extension `pg_stat_statements`, quoted; no row where it is not installed,
# or where the server has not loaded it.
STATEMENTS_SCHEMA = """
SELECT quote_ident(space.nspname)
FROM pg_extension AS extension JOIN pg_namespace AS space ON space.oid = extension.extnamespace
WHERE extension.extname = 'pg_stat_statements' AND current_setting('pg_stat_statements.max', true) IS NOT NULL
LIMIT 1
"""

# database-load, metrics → the seconds that PostgreSQL has executed statements for, since they are counted: those that
# name the queue's tables, all of this database, and whether the text of any is hidden from this role. `schema`: that of
# the extension.
STATEMENT_TIMES = """
SELECT
    COALESCE(sum(total_exec_time) FILTER (WHERE query LIKE '%%skipqueue\\_%%'), 0) / 1000,
    COALESCE(sum(total_exec_time), 0) / 1000,
    COALESCE(bool_or(query IS NULL OR query = '<insufficient privilege>'), false)
FROM {schema}.pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
LIMIT 1
"""
