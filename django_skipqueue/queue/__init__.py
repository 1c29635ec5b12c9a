"""The queue in PostgreSQL. This package contains the SQL statements of the core, and the functions that send them.

Each operation, such as claim or settle, has a file. The file has the statements first, each a named string, and then
the functions that send the statements. Each function takes a `Store`, which is the queue of one database. `Store` has
the common operations as methods, in the order of a job's life. The statements of a part are in the part's own folder.

Nothing in this package depends on tasks, worker processes or Django's models.

The comment above a statement says which process or function sends it, which rows it returns, and which index it uses.
To run a statement in psql, replace `%(…)s` by a value, `{status}` by 'queued', and `{operations}` by job.operations.
`fragments` has the SQL that several statements share.

Rules for all statements:

- A status is a literal, because a generic plan cannot use a partial index for a parameter.
- Rows are chosen by a limited, locking `SELECT` in a `MATERIALIZED` CTE and updated by `id = ANY (ARRAY (SELECT …))`,
  or by ctid. The rows are chosen once, so that the statement never takes more than the limit. The planner expects few
  ids, so that it always uses the primary key; with a join, a generic plan expects a tenth of the table and reads all of
  it. `PRUNE` deletes the rows that `EXPIRED` has locked in the same transaction.
- All statements skip rows that another transaction has locked, except `SETTLE`, `RELEASE` and `HEARTBEAT_JOB`, whose
  caller owns the rows by lease.
- A batch of values is one JSON document, or arrays from a scalar subquery. PostgreSQL expects a hundred rows from a
  document and ten from arrays, whatever their length. So it looks up each row by an index.
- `fragments.entering` replaces `{status}` by an SQL expression: the status of a job that enters its first gate.
  `RELEASE`, `RELEASE_ORPHANS` and `RECOVER` put back jobs that have already passed the gates, and `POSTPONE` makes a
  job wait at the first gate, so these statements write the status literally.
- A statement for operators, such as a retry, also records the operation in the job's column `operations`, which keeps
  the newest 50 records. `fragments.recording` replaces `{operations}` by the SQL expression.
- A process that writes what an external worker reports sends statements that also check who holds the job: see
  `Store.guards`.
- All times come from the database's clock.
"""
