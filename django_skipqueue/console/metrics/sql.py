"""Every statement of the metrics that is not the store's or the doctor's own, as a literal. Each only reads."""

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
