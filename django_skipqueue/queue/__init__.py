"""The queue in PostgreSQL: `Store` is the queue of one database, and runs the statements.

Each verb has a file: first the statements, each a named literal, then the functions that send them. Each function takes
a store. `Store` lists the verbs of a plain job as its methods, in the order of a job's life. Observers, the doctor and
connections call functions that are no methods. What a part does with the database is in the folder of the part.

Invariant: nothing here depends on tasks, worker processes or Django's models.

The comment above a statement has the form "callers → the rows that it returns". Then come its rules and the index that
it uses. A statement runs in psql if `%(…)s` is replaced by a value, `{status}` by 'queued', and `{operations}` by
job.operations. `fragments` has what statements share.

Rules of all statements:

- A status is a literal: with a parameter, a generic plan cannot use a partial index.
- Rows are chosen by a limited, locking `SELECT` in a `MATERIALIZED` CTE and updated by `id = ANY (ARRAY (SELECT …))`,
  or by ctid. The rows are chosen once, so that the statement never takes more than the limit. The planner expects few
  ids, so that it always uses the primary key; with a join, a generic plan expects a tenth of the table and reads all of
  it. `PRUNE` deletes the rows that `EXPIRED` has locked in the same transaction.
- All statements skip rows that another transaction has locked, except `SETTLE`, `RELEASE` and `HEARTBEAT_JOB`, whose
  caller owns the rows by lease.
- A batch of values is one JSON document, or arrays from a scalar subquery. PostgreSQL expects a hundred rows from a
  document and ten from arrays, whatever their length, and so looks up each row by an index.
- `fragments.entering` replaces `{status}` by the expression for the status of a job that enters from outside.
  `RELEASE`, `RELEASE_ORPHANS` and `RECOVER` put back jobs that are past the gates, and `POSTPONE` has a job wait at the
  first gate, so these write the status literally.
- The statement of an operator's verb also records it in the row: `operations` holds the newest 50. `recording` of
  `fragments` replaces `{operations}` by the expression.
- What an external worker reports is written by statements that also check who holds the job: see `Store.guards`.
- The only clock is the database's.
"""
