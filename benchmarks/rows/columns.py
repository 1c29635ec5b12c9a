"""How much time and write-ahead log the columns and indexes of the job table cost."""

import psutil
from django.db import connection

from ..databases import written_ahead
from ..figures import Figures
from ..sizes import Sizes
from .cost import cpu_seconds

POLICIES = (
    "limit_key",
    "limit_kind",
    "capacity",
    "gate",
    "rate_key",
    "rate_interval",
    "rate_burst",
    "unique_key",
    "unique_seconds",
    "batch_id",
    "held",
)
"""The columns of limits, rates, unique keys, batches and dependencies. DROP COLUMN removes their indexes as well."""

# Name of the variant, and the statement that makes it from a copy of the job table.
VARIANTS = {
    "as it is": "",
    "with a UUID as the key": "ALTER TABLE {0} DROP COLUMN id CASCADE;"
    " ALTER TABLE {0} ADD id uuid DEFAULT gen_random_uuid() PRIMARY KEY;"
    " CREATE INDEX ON {0} (queue_name, (-priority), run_after, id) WHERE status = 'queued'",
    "without the JSON defaults": "ALTER TABLE {0} DROP COLUMN errors, DROP COLUMN metadata, DROP COLUMN kwargs",
    "with a text of 100 characters more": "ALTER TABLE {0} ADD more text DEFAULT repeat('x', 100)",
    "with one index more on all rows": "CREATE INDEX ON {0} (enqueued_at)",
    "with one partial index more on finished rows": "CREATE INDEX ON {0} (task) WHERE status = 'completed'",
    "with an index for the search by an argument": "CREATE INDEX ON {0}"
    " (jsonb_hash_extended(COALESCE(kwargs -> 'number', args -> 0), 0)) WHERE task = 'benchmarks.jobs.noop'",
    "without the columns of policies": "ALTER TABLE {0} "
    + ", ".join(f"DROP COLUMN {column} CASCADE" for column in POLICIES),
    "without CHECK constraints": "DO $$ DECLARE name text; BEGIN FOR name IN SELECT conname FROM pg_constraint"
    " WHERE conrelid = '{0}'::regclass AND contype = 'c' LOOP"
    " EXECUTE format('ALTER TABLE {0} DROP CONSTRAINT %I', name); END LOOP; END $$",
}  # fmt: skip

INSERT = """
INSERT INTO {0} (queue_name, task, args, status, priority, max_attempts, run_after)
SELECT 'default', 'benchmarks.jobs.noop', jsonb_build_array(n), 'queued', 0, 10, now() FROM generate_series(1, {1}) AS n
"""
CLAIM = """
UPDATE {0}
SET status = 'running', lease = lease + 1, attempts = attempts + 1, locked_by = 'machine:1/1:0123456789ab',
    locked_at = now(), started_at = now()
"""
SETTLE = "UPDATE {0} SET status = 'completed', lease = lease + 1, finished_at = now()"


def columns(sizes: Sizes) -> Figures:
    """Microseconds of the session and bytes of log to insert, claim and settle a row, in tables that differ."""
    rows = min(sizes.jobs, 50_000)
    figures: Figures = {}
    for variant, change in VARIANTS.items():
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE variant (LIKE skipqueue_job INCLUDING ALL)")
            cursor.execute("ALTER TABLE variant ALTER kwargs SET DEFAULT '{}'")
            if change:
                cursor.execute(change.format("variant"))
            session = psutil.Process(connection.connection.info.backend_pid)
            used, wal = cpu_seconds(session), written_ahead()
            for statement in (INSERT, CLAIM, SETTLE):
                cursor.execute(statement.format("variant", rows))
            figures[f"us {variant}"] = (cpu_seconds(session) - used) / rows * 1e6
            figures[f"WAL bytes {variant}"] = (written_ahead() - wal) / rows
            cursor.execute("DROP TABLE variant")
    return figures
