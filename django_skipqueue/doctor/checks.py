"""The table of checks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..store import Store
from . import carriers, jobs, limits, load, locks, retiring, schedules, server, snapshots, tables, workers
from .finding import Finding


@dataclass(frozen=True)
class Check:
    code: str
    find: Callable[[Store], Iterable[Finding]]
    all_is_well: str | Promise
    """The title of the finding if there is nothing to find."""


CHECKS = (
    Check("migrations", server.migrations, _("All migrations are applied")),
    Check("no-worker", workers.no_worker, _("Workers are alive")),
    Check("queue-without-worker", workers.queues_without_worker, _("Every queue with jobs has a worker")),
    Check("carrier-without-relay", carriers.without_relay, _("Every carrier with jobs has a relay")),
    Check("carrier-unreachable", carriers.unreachable, _("The broker of every carrier is reached")),
    Check("carrier-lost-jobs", carriers.lost_jobs, _("No carrier holds jobs for too long")),
    Check("paused-queue", workers.paused_queues, _("No job waits in a paused queue")),
    Check("late-worker", workers.late_workers, _("No worker is late")),
    Check("dead-worker", workers.dead_workers, _("No worker is dead")),
    Check("unendable-session", workers.unendable_sessions, _("Every supervisor may end the sessions of dead workers")),
    Check("orphaned-job", jobs.orphaned_jobs, _("Every running job has a worker")),
    Check("unknown-task", jobs.unknown_tasks, _("The tasks of the next jobs are registered")),
    Check("long-job", jobs.long_jobs, _("No job has run for more than an hour")),
    Check("stuck-key", jobs.stuck_keys, _("No unique key is held for days")),
    Check("stuck-dependant", jobs.stuck_dependants, _("No job waits for a deleted one")),
    Check("halted-sequence", limits.halted, _("No sequence has halted")),
    Check("free-permit", limits.free_permits, _("No permit is free while jobs wait for it")),
    Check("held-permit", limits.held_permits, _("No permit is held by a job that no worker claims")),
    Check("late-schedule", schedules.late, _("Every schedule has fired in time")),
    Check("prune-lag", jobs.prune_lag, _("Finished jobs are deleted in time")),
    Check("lock-waits", locks.lock_waits, _("Nobody waits for a lock on the queue's tables")),
    Check("old-session", snapshots.old_sessions, _("No session holds an old snapshot")),
    Check("old-slot", snapshots.old_slots, _("No replication slot holds an old snapshot")),
    Check("prepared-transaction", snapshots.prepared_transactions, _("No prepared transaction is left over")),
    Check("old-standby", snapshots.old_standbys, _("No standby holds an old snapshot")),
    Check("idle-transaction", server.idle_transactions, _("No session is idle in an old transaction")),
    Check("dead-rows", tables.dead_rows, _("Autovacuum keeps up with dead rows")),
    Check("expensive-claims", tables.expensive_claims, _("Claims read few pages")),
    Check("never-analyzed", tables.never_analyzed, _("The planner has statistics")),
    Check("invalid-index", tables.invalid_indexes, _("Every index is valid")),
    Check("index-bloat", tables.bloated_indexes, _("No index is mostly empty")),
    Check("transaction-ids", tables.transaction_ids, _("Transaction ids are frozen in time")),
    Check("storage-parameters", tables.storage_parameters, _("The tables have their storage parameters")),
    Check("table-sizes", tables.table_sizes, _("Sizes of the tables")),
    Check("database-load", load.database_load, _("The queue's part of the database's load")),
    Check("notify-queue", server.notify_queue, _("PostgreSQL's queue of notifications is nearly empty")),
    Check("connection-budget", server.connection_budget, _("There are connections for all workers")),
    Check("connections-used", server.connections_used, _("Connections are left")),
    Check("pooler", server.pooler, _("Notifications can arrive")),
    Check("autovacuum", server.autovacuum, _("Autovacuum is on")),
    Check("synchronous-commit", server.synchronous_commit, _("Commits wait for the disk")),
    Check("track-activities", server.track_activities, _("PostgreSQL records what its sessions do")),
    Check("hidden-sessions", server.hidden_sessions, _("No session is hidden")),
    Check("clock-skew", workers.clock_skew, _("The clocks agree")),
)
"""The checks of every database. Findings of the same severity keep this order."""

RETIRING = Check("retiring-database", retiring.retiring, _("No database is in RETIRING"))
"""The check of a database in `RETIRING`, which comes last."""
