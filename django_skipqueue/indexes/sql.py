"""Find, build and remove indexes. `{schema}` and `{index}` are identifiers of the catalog, which `psycopg` quotes."""

# reindex → the indexes of our tables and of their partitions: schema, name, bytes, and whether each is left over from
# an interrupted rebuild.
INDEXES = """
SELECT
    namespace.nspname,
    class.relname,
    pg_relation_size(class.oid),
    NOT index.indisvalid AND class.relname ~ '_cc(new|old)[0-9]*$'
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(part.relid, to_regclass(ours.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE class.relkind = 'i'
ORDER BY class.relname
LIMIT 10000
"""

# reindex: sets how long a statement of this session waits for a lock, and lets it run for as long as it takes.
LIMIT_LOCK_WAITS = """
SELECT set_config('lock_timeout', %(lock_timeout)s, false), set_config('statement_timeout', '0', false)
"""

# reindex: builds an index anew beside the old one, which is used until the new one is ready.
REINDEX = "REINDEX INDEX CONCURRENTLY {schema}.{index}"

# reindex: removes what an interrupted rebuild has left.
DROP_INDEX = "DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}"
