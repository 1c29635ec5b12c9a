"""Each statement of the queue uses its index in a table of 100,000 rows, with custom and generic plans."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count, product
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from psycopg.adapt import PyFormat, Transformer

from django_skipqueue.models import Job
from django_skipqueue.parts.batches.dependencies import NeededJob, UnmetNeed
from django_skipqueue.parts.history.rollups import AttemptCounts, FailedAttempts, rows_of_counts, rows_of_failures
from django_skipqueue.parts.limits.claim import AheadWish, ahead_as_values
from django_skipqueue.queue.fragments import CALL_KEYS
from django_skipqueue.queue.parameters import (
    as_array,
    calls_as_values,
    claim_values,
    insert_values,
    leases_as_values,
    notes_as_values,
    positions_as_values,
    settlements_as_values,
    unindented,
)
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import (
    Cause,
    ClaimedJob,
    Dependant,
    EncodedCall,
    EnqueuedJob,
    JobSpec,
    Noted,
    QueuePosition,
    RecoveredJob,
)

from ..app.sessions import LAST_MIGRATION, connect, schema
from .statements import STATEMENTS

WITHOUT_A_PLAN = {
    "LISTEN", "LISTEN_AS_SUPERVISOR", "UNLISTEN", "PLAN_ONCE", "DROP_PLANS", "ENQUEUE_AND_ADMIT", "ENQUEUE_AND_NOTIFY",
    "EXPECTED_QUEUED", "EXPECTED_RUNNING", "EXPECTED_BLOCKED", "EXPLAIN_CLAIM", "LOCK_ARCHIVE", "ADMIT_WITHOUT_WAITING",
    "BOUND_TRANSACTIONS",
}  # fmt: skip
"""Statements that cannot be explained: commands without a plan, texts of several statements (each of which has its
own case as well), and a setting that only PostgreSQL 17 and newer know."""

WORKER = "live:000000000001"
DEAD_WORKER = "dead:000000000002"
CARRIER = "celery:000000000003"
OF_CARRIER = {"carrier": "celery", "carrier_id": CARRIER}
QUEUES = "skipqueue_queue_pkey"
REQUESTS = "skipqueue_worker_request_pkey"
NEEDS, UNMET = "skipqueue_dependency_pkey", "skipqueue_dependency_unmet"
OF_STEPS = STEPS, SIGNALS, CHILDREN = ("skipqueue_step_pkey", "skipqueue_signal_pkey", "skipqueue_child_pkey")
BUCKETS, DUE_RATES = "skipqueue_rate_pkey", "skipqueue_rate_due"
BATCHES, OPEN_BATCHES = "skipqueue_batch_pkey", "skipqueue_batch_open"
UNTAKEN_SIGNALS, DUE_STEPS = "skipqueue_signal_untaken", "skipqueue_step_due"
SOME_BATCHES = as_array([5, 700, 19_950, 19_999, 20_000])
INDEX_TWINS = {"skipqueue_queue_name_8ef7ef6d_like": QUEUES, "skipqueue_rate_key_f767a521_like": BUCKETS}
"""Django makes two indexes for a unique text, and PostgreSQL may use either: the first, by the name of the second."""
SOME_IDS = [1_000, 50_000, 65_000, 66_000, 84_000, 92_000, 99_500]


class Case(NamedTuple):
    """A statement with values, and the indexes that it has to use. PostgreSQL may use the indexes of `instead`.

    An index of the job table is named by its ending: `claim` is `skipqueue_job_claim`.
    """

    statement: str
    values: dict[str, Any]
    indexes: set[str]
    label: str = ""
    instead: set[str] = set()


# The values that all statements to enqueue jobs take.
ENQUEUE_VALUES = {
    "queue_name": "mail",
    "task": "t",
    "priority": 0,
    "max_attempts": 10,
    "run_after": None,
    "delay": 0.0,
    "timeout": 1.5,
    "retention": None,
    "metadata": "{}",
    "batch_id": None,
    "held": None,
}
DUE_VALUES = {name: ENQUEUE_VALUES[name] for name in ("run_after", "delay")}
UNLIMITED = dict.fromkeys(("limit_key", "limit_kind", "capacity", "rate_key", "rate_interval", "rate_burst"))
CALL_VALUES = calls_as_values([EncodedCall(f"[{number}]", "{}") for number in range(300)])
NEW_KEYS = [f"new-{number:03}" if number % 2 else None for number in range(300)]
LEASE_VALUES = leases_as_values((id, 1) for id in range(99_001, 99_301))
WORKER_ROWS = json.dumps([{"id": WORKER, "name": "w", "hostname": "h", "pid": 1, "queues": ["mail"], "concurrency": 4}])
CLAIM_VALUES = claim_values(["mail", "default"], after={}, limit=300, worker_id=WORKER)
POSITION_IN_MAIL = {"mail": QueuePosition(0, 1_700_000_000.25, 92_500)}
SETTLEMENTS = [
    Settlement(
        id, 1, COMPLETED if id % 2 else Outcome("scheduled", delay=2.0, last_error="no", error={"message": "no"})
    )
    for id in range(97_001, 100_001)
]
RETENTION = {"completed": timedelta(days=1), "discarded": timedelta(days=7), "failed": timedelta(days=30)}
EXPIRED_VALUES = RETENTION | {"grace": 60.0, "limit": 1000, "skipped": "{5,6}"}
COUNT_ROWS = json.dumps(list(rows_of_counts({(1, "mail", "t"): AttemptCounts(completed=1)})))
ONE_CAUSE = {"task": "shop.send", "exception": "ValueError", "place": "shop.f7"}
FAILURE_ROWS = json.dumps(
    list(rows_of_failures({(1, Cause("t", "ValueError", "t.f")): FailedAttempts(1, 60.0, 61.0, 3, 4)}))
)
NOTE_VALUES = notes_as_values(
    Noted(id, 1, 0.0, '{"progress": {"lease": 1, "value": 0.5}}') for id in range(99_001, 99_301)
)
BY_ANNA = {"by": "anna", "reason": "r"}
IN_2030 = datetime(2030, 1, 1, tzinfo=UTC)
BY_ANNA_WITH_ERROR = BY_ANNA | {"last_error": "r"}
UNIQUE_FOR_AN_HOUR = {"unique_seconds": 3600.0}
ENQUEUE_ONE_VALUES = ENQUEUE_VALUES | UNIQUE_FOR_AN_HOUR | UNLIMITED | {"args": "[]", "kwargs": "{}"}
RECOVER_VALUES = {"age": 0.0, "crashed": False, "reason": "r", "limit": 1000} | dict.fromkeys(
    ("locked_before", "worker_ids", "job_ids")
)
TAKEN_KEYS = [f"key-{number}" for number in range(84_000, 84_300)]

CLAIM_AHEAD_VALUES = ahead_as_values(
    [AheadWish("key 3", "shop.limited", "limited", 1, 20, [(100_003, 0)])], worker_id=WORKER
)
SERVED_QUEUES_VALUES = {"timeout": 60.0, "idle": False, "external": ["carried"]}
IDLE_QUEUES_VALUES = SERVED_QUEUES_VALUES | {"idle": True}
PLAIN_VALUES = {name: ENQUEUE_ONE_VALUES[name] for name in re.findall(r"%\((\w+)\)s", STATEMENTS["ENQUEUE_PLAIN"])}
WAITING_IDS = as_array(range(70_001, 70_101))
WAIT_VALUES: dict[str, Any] = {
    "job_id": 99_001,
    "lease": 1,
    "name": "go",
    "number": 1,
    "attempt": 1,
    "resets": True,
    "by": "w",
    "reason": "go",
    "delay": 60.0,
}
STEP_VALUES = WAIT_VALUES | {"kind": "step", "seconds": 0.5, "is_open": False, "result": "1", "error": None}
NEXT_STEP_VALUES = {name: STEP_VALUES[name] for name in STEP_VALUES.keys() - {"resets", "by", "reason"}}
CASES = [
    Case("ENQUEUE_PLAIN", PLAIN_VALUES, set()),
    Case("ENQUEUE", ENQUEUE_ONE_VALUES | {"unique_key": "key-84000"}, {"unique"}),
    Case("ENQUEUE", ENQUEUE_ONE_VALUES | {"unique_key": None, "run_after": IN_2030}, {"unique"}, "with a time"),
    Case("ENQUEUE_MANY", ENQUEUE_VALUES | UNIQUE_FOR_AN_HOUR | CALL_VALUES, set()),
    Case(
        "ENQUEUE_MANY_UNIQUE",
        ENQUEUE_VALUES | UNIQUE_FOR_AN_HOUR | CALL_VALUES | {"unique_keys": NEW_KEYS, "number": 300},
        {"unique"},
    ),
    Case("REPLACE_WAITING", DUE_VALUES | CALL_VALUES | {"unique_keys": TAKEN_KEYS}, {"unique", "pkey"}),
    Case("REPLACE_UNLOCKED", DUE_VALUES | CALL_VALUES | {"unique_keys": TAKEN_KEYS}, {"unique", "pkey"}),
    Case("UNIQUE_KEY_HOLDERS", {"unique_keys": TAKEN_KEYS}, {"unique"}),
    Case("LOCK_WAITING_HOLDERS", {"unique_keys": TAKEN_KEYS}, {"unique"}),
    Case("LOCK_UNLOCKED_HOLDERS", {"unique_keys": TAKEN_KEYS}, {"unique"}),
    Case("FREE_UNIQUE_KEYS", {"unique_keys": TAKEN_KEYS}, {"unique", "pkey"}),
    Case("UNIQUE_KEYS_OF", {"ids": SOME_IDS}, {"pkey"}),
    Case("NOTIFY", {"channel": "skipqueue", "payload": "mail"}, set()),
    Case("NOTIFY_ALONE", {"channel": "skipqueue", "payload": "mail"}, set()),
    Case("ENQUEUE_AND_NOTIFY", PLAIN_VALUES | {"call": "x"}, set()),
    Case("ENQUEUE_AND_ADMIT", ENQUEUE_ONE_VALUES | {"call": "x", "unique_key": None}, {"unique"}),
    Case("INSERTED", {"call": "x"}, set()),
    Case("LISTEN", {}, set()),
    Case("UNLISTEN", {}, set()),
    Case("PLAN_ONCE", {}, set()),
    Case("BOUND_TRANSACTIONS", {"timeout": "20s"}, set()),
    Case("END_SESSIONS", {"names": ["skipqueue:000000000002"]}, set()),
    Case("DROP_PLANS", {}, set()),
    Case("LISTEN_AS_SUPERVISOR", {}, set()),
    Case("TAKE_OVER", {"id": 99_001, "lease": 1, "worker_id": WORKER}, {"pkey"}),
    Case("CLAIM", CLAIM_VALUES, {"claim", QUEUES}),
    Case("CLAIM_ROWS", {"queue_names": ["mail", "default"], "limit": 300, "worker_id": WORKER}, {"claim", QUEUES}),
    Case("CLAIM", CLAIM_VALUES | {"limit": 1}, {"claim", QUEUES}, "a single one"),
    Case(
        "CLAIM",
        claim_values(["mail", "default"], after=POSITION_IN_MAIL, limit=300, worker_id=WORKER),
        {"claim", QUEUES},
        "after a position",
    ),
    Case("QUEUES_WITH_JOBS", {"after": "a", "limit": 10, "with_paused": False}, {"claim", QUEUES}),
    Case("FIRST_IN_QUEUES", positions_as_values(["mail", "default", "none"], POSITION_IN_MAIL), {"claim"}),
    Case("LIMIT_STATEMENTS", {"timeout": "20s"}, set()),
    Case("BACKEND_PID", {}, set()),
    Case("LOCK_TIMEOUT", {}, set()),
    Case("SETTLE", settlements_as_values(SETTLEMENTS), {"pkey"}),
    Case("SETTLE", settlements_as_values(SETTLEMENTS[:1]), {"pkey"}, "a single one"),
    Case("SETTLE_SNOOZES", settlements_as_values(SETTLEMENTS), {"pkey"}),
    Case("SETTLE_CARRIED", settlements_as_values(SETTLEMENTS) | OF_CARRIER, {"pkey"}),
    Case("SETTLE_CARRIED", settlements_as_values(SETTLEMENTS[:1]) | OF_CARRIER, {"pkey"}, "a single one"),
    Case("SETTLE_CARRIED_SNOOZES", settlements_as_values(SETTLEMENTS) | OF_CARRIER, {"pkey"}),
    Case("QUEUES_OF", {"ids": LEASE_VALUES["ids"]}, {"pkey"}),
    Case("LOCKED_ROWS", LEASE_VALUES, {"pkey"}),
    Case("STILL_HOLDING", {"worker_ids": [WORKER, DEAD_WORKER]}, {"recover"}),
    Case("RELEASE", LEASE_VALUES | {"interrupted": False, "later": False}, {"pkey"}),
    Case("RELEASE", LEASE_VALUES | {"interrupted": True, "later": False}, {"pkey"}, "of running jobs"),
    Case("RELEASE_ORPHANS", {"worker_id": WORKER, "known": [99_001], "claimed_until": None}, {"recover", "pkey"}),
    Case("RELEASE_CARRIED", LEASE_VALUES | {"interrupted": False, "later": False} | OF_CARRIER, {"pkey"}),
    Case(
        "RELEASE_ORPHANS",
        {"worker_id": WORKER, "known": [], "claimed_until": IN_2030},
        {"recover", "pkey"},
        "of a time",
    ),
    Case("HEARTBEAT_JOB", {"id": 99_001, "lease": 1}, {"pkey"}),
    Case("ADMIT", {"limit": 1000}, {"admit", "pkey"}),
    Case("NEXT_DUE", {}, {"admit"}),
    Case("RECOVER", RECOVER_VALUES | {"age": 60.0}, {"recover", "pkey"}, "by age"),
    Case(
        "RECOVER",
        RECOVER_VALUES | {"locked_before": datetime(2026, 1, 1, tzinfo=UTC)},
        {"recover", "pkey"},
        "without a worker",
    ),
    Case("RECOVER", RECOVER_VALUES | {"worker_ids": [DEAD_WORKER]}, {"recover", "pkey"}, "by worker"),
    Case(
        "RECOVER_RETURNED",
        OF_CARRIER | {"ids": [99_001], "leases": [1], "crashed": False, "reason": "r", "limit": 1},
        {"pkey"},
    ),
    Case("QUEUED_NOW", {"limit": 1000, "most": 1000, "least": 10, "together": 5000}, {"claim"}),
    Case("RUNNING_NOW", {"limit": 100}, {"recover"}),
    Case("HELD_NOW", {"limit": 100, "shown": 5}, {"recover"}),
    Case("EXPECTED_QUEUED", {"queue_name": "mail"}, {"claim"}),
    Case("EXPECTED_RUNNING", {}, {"recover"}),
    Case("EXPLAIN_CLAIM", {"queue_name": "mail", "limit": 100}, {"claim"}),
    Case("ENTRIES_READ", {}, set()),
    Case("CLAIM_COSTS", {"limit": 10}, {"skipqueue_rollup_pkey"}),
    Case("SET_LOCK_TIMEOUT", {"timeout": "1s"}, set()),
    Case("ROLL_UP", {"rows": COUNT_ROWS}, {"skipqueue_rollup_pkey"}),
    Case(
        "ROLL_UP_FAILURES",
        {"rows": FAILURE_ROWS, "deployment": "4f2a"},
        {"skipqueue_failure_rollup_pkey", "skipqueue_rollup_pkey"},
    ),
    Case(
        "FAILING",
        {"among": 1000, "limit": 100},
        {"skipqueue_failure_rollup_pkey", "skipqueue_failure_rollup_prune", "skipqueue_rollup_pkey"},
    ),
    Case(
        "FAILING_OF_TASK",
        {"task": "shop.t7", "among": 1000, "limit": 100},
        {"skipqueue_failure_rollup_pkey", "skipqueue_rollup_pkey"},
    ),
    Case("FAILURES_OF", ONE_CAUSE | {"limit": 1}, {"skipqueue_failure_rollup_pkey", "skipqueue_rollup_pkey"}),
    Case("LAST_ERRORS", {"ids": SOME_IDS}, {"pkey"}),
    Case("ACKNOWLEDGE", ONE_CAUSE | {"by": "ann", "note": "ticket"}, {"skipqueue_failure_rollup_pkey"}),
    Case("UNACKNOWLEDGE", ONE_CAUSE, {"skipqueue_failure_rollup_pkey"}),
    Case("NOTE_DEPLOYMENT", {"name": "4f2a"}, {"skipqueue_deployment_pkey"}),
    Case("DEPLOYMENTS", {"since": 0.0, "limit": 50}, set()),
    Case("PRUNE_DEPLOYMENTS", {"age": 86_400.0}, set()),
    Case("START_COUNTING", {}, {"pkey", "skipqueue_rollup_progress_pkey"}),
    Case(
        "COUNT_ENQUEUED",
        {"interval": 9.0, "patience": 60.0, "limit": 1000},
        {"pkey", "skipqueue_rollup_pkey"},
    ),
    Case("RATES_NOW", {"minutes": 5}, {"skipqueue_rollup_prune"}),
    Case("RECENT_TASKS", {}, {"skipqueue_rollup_prune"}),
    Case("DEATHS_SINCE", {}, {"skipqueue_rollup_pkey", "skipqueue_failure_rollup_prune"}),
    Case(
        "DEATHS_OF_TASKS",
        {"tasks": ["shop.send"], "queue_names": ["mail"], "since": datetime(2026, 1, 1, tzinfo=UTC)},
        {"skipqueue_rollup_pkey"},
    ),
    Case("USUAL_RUNS", {"tasks": ["shop.send"]}, {"skipqueue_rollup_pkey"}, instead={"skipqueue_rollup_prune"}),
    Case(
        "RECENT_CAUSES", {"tasks": ["shop.send"]}, {"skipqueue_failure_rollup_prune", "skipqueue_failure_rollup_pkey"}
    ),
    Case("USUAL_SHARES", {"tasks": ["shop.send"], "queue_names": ["mail"]}, {"skipqueue_rollup_prune"}),
    Case(
        "SINCE_NEW",
        {"tasks": ["shop.send"], "queue_names": ["mail"], "since": [datetime.now(UTC) - timedelta(minutes=5)]},
        {"skipqueue_rollup_pkey"},
    ),
    Case("FAILING_SINCE", {"tasks": ["shop.send"], "queue_names": ["mail"], "share": 0.1}, {"skipqueue_rollup_pkey"}),
    Case("RECENT_QUEUES", {}, {"skipqueue_rollup_prune"}),
    Case("USUAL_QUEUES", {"queue_names": ["mail", "default"]}, {"skipqueue_rollup_prune"}),
    Case("DUE_RETRIES", {"seconds": 300.0, "limit": 1000}, {"admit"}),
    Case("KNOWN_QUEUES", {"limit": 100}, {"skipqueue_rollup_pkey"}, instead={"skipqueue_rollup_prune"}),
    Case("ROLLED_UP", {"limit": 100}, {"skipqueue_rollup_pkey"}, instead={"skipqueue_rollup_prune"}),
    Case("CLAIMS", {}, {"skipqueue_rollup_pkey"}, instead={"skipqueue_rollup_prune"}),
    Case("DEPTHS_ARE_DUE", {}, {"skipqueue_rollup_pkey"}),
    Case(
        "ROLL_UP_DEPTHS",
        {"rows": json.dumps([{"queue_name": "mail", "depth": 3, "oldest_seconds": 1.5}])},
        {"skipqueue_rollup_pkey"},
    ),
    Case("PRUNE_ROLLUPS", {"span": 60, "age": 258_000.0, "limit": 100}, {"skipqueue_rollup_prune"}),
    Case("PRUNE_FAILURES", {"span": 60, "age": 258_000.0, "limit": 100}, {"skipqueue_failure_rollup_prune"}),
    Case("INSERT_BATCH", {"name": "b", "parent_id": None, "callbacks": "{}"}, set()),
    Case("JOIN_BATCH", {"id": 19_999}, {OPEN_BATCHES}),
    Case("OPEN_BATCHES", {"after": 19_000, "limit": 100}, {OPEN_BATCHES}),
    Case("DONE_BATCHES", {"ids": SOME_BATCHES}, {BATCHES, OPEN_BATCHES, "skipqueue_batch_inner", "batch"}),
    Case("LIMIT_LOCKS", {"timeout": "1s"}, set()),
    Case("LOCK_BATCHES", {"ids": SOME_BATCHES}, {OPEN_BATCHES}),
    Case(
        "FINISH_BATCHES",
        {"ids": SOME_BATCHES},
        {BATCHES, OPEN_BATCHES, "skipqueue_batch_inner", "batch", "pkey", "skipqueue_batch_pruned_of"},
    ),
    Case(
        "INSERT_DEPENDENCIES",
        {"ids": as_array([99_001, 99_002]), "needs": as_array([5, 6]), "after_failure": "wait"},
        {"pkey"},
    ),
    Case("PREDECESSORS", {"after": 70_000, "limit": 100}, {UNMET, "pkey"}),
    Case("LOCK_DEPENDANTS", {"ids": as_array([70_100, 70_200]), "limit": 100}, {UNMET, "pkey"}),
    Case("ADMIT_DEPENDANTS", {"ids": as_array([80_100, 80_200])}, {NEEDS, "pkey"}),
    Case("FORGET_DEPENDANTS", {"ids": as_array([70_100, 70_200]), "limit": 100}, {UNMET, "pkey"}),
    Case("NEEDS", {"id": 80_100}, {NEEDS, "pkey"}),
    Case("UNMET_NEEDS", {"id": 80_100, "limit": 6}, {NEEDS, "pkey"}),
    Case("NOTE_CALLBACKS", {"id": 19_999, "callback_ids": [1, 2], "callbacks": "{}"}, {BATCHES}),
    Case(
        "PROGRESS",
        {"ids": SOME_BATCHES, "most": 100},
        {BATCHES, "skipqueue_batch_inner", "batch", "skipqueue_batch_pruned_of"},
    ),
    Case(
        "PRUNE_BATCHES",
        {"completed": timedelta(days=1), "failed": timedelta(days=2), "limit": 100},
        {"skipqueue_batch_prune", BATCHES, "batch", "pkey", "skipqueue_batch_pruned_of"},
    ),
    Case("EXPIRED", EXPIRED_VALUES, {"prune", "prune_own", "pkey", STEPS, "skipqueue_child_job"}),
    Case(
        "EXPIRED",
        EXPIRED_VALUES | {"completed": None, "discarded": timedelta(0)},
        {"prune", "prune_own", "pkey", STEPS, "skipqueue_child_job"},
        "keeping some for ever",
    ),
    Case("PRUNE_LAG", RETENTION, {"prune", "prune_own"}),
    Case("ARCHIVE", {"ids": as_array(range(58_000, 59_000)), "kept": None}, {"pkey", NEEDS, UNMET, BATCHES, *OF_STEPS}),
    Case(
        "ARCHIVE",
        {"ids": as_array(range(58_000, 59_000)), "kept": timedelta(days=1)},
        {"pkey", NEEDS, UNMET, BATCHES, *OF_STEPS},
        "jobs past their retention",
    ),
    Case("LOCK_ARCHIVE", {}, set()),
    Case("MISSING_PARTITIONS", {"ahead": 2, "kept": None}, {"prune"}),
    Case("MISSING_PARTITIONS", {"ahead": 0, "kept": timedelta(days=20)}, {"prune"}, "with a retention"),
    Case("EXPIRED_PARTITION", {"kept": timedelta(days=365)}, set()),
    Case("PRUNE", {"ids": as_array(range(60_000, 61_000))}, {"pkey", NEEDS, UNMET, BATCHES, *OF_STEPS}),
    Case("RETRY", BY_ANNA | {"ids": SOME_IDS, "over": 0.0}, {"pkey", "unique"}),
    Case("RETRY", BY_ANNA | {"ids": list(range(60_000, 61_000)), "over": 60.0}, {"pkey", "unique"}, "a thousand"),
    Case("CANCEL", BY_ANNA_WITH_ERROR | {"ids": SOME_IDS}, {"pkey"}),
    Case("CANCEL", BY_ANNA_WITH_ERROR | {"ids": list(range(64_500, 65_500))}, {"pkey"}, "a thousand"),
    Case("RUN_NOW", BY_ANNA | {"ids": SOME_IDS}, {"pkey"}),
    Case("RUN_NOW", BY_ANNA | {"ids": list(range(64_500, 65_500))}, {"pkey"}, "a thousand"),
    Case("RESCHEDULE", BY_ANNA | {"ids": SOME_IDS, "run_after": None, "delay": -60.0}, {"pkey"}),
    Case(
        "CHANGE_QUEUE",
        UNLIMITED | BY_ANNA | {"ids": SOME_IDS, "queue_name": "other"},
        {"pkey"},
    ),
    Case("CHANGE_PRIORITY", BY_ANNA | {"ids": SOME_IDS, "priority": 7}, {"pkey"}),
    Case("NOTE_COPIES", BY_ANNA | {"ids": SOME_IDS, "originals": json.dumps(dict.fromkeys(SOME_IDS, 1))}, {"pkey"}),
    Case("POSTPONE", BY_ANNA | {"ids": SOME_IDS, "run_after": None, "delay": 60.0}, {"pkey"}),
    Case(
        "POSTPONE",
        BY_ANNA | {"ids": list(range(64_500, 65_500)), "run_after": datetime(2030, 1, 1, tzinfo=UTC), "delay": 0.0},
        {"pkey"},
        "a thousand",
    ),
    Case("NOTE_ATTEMPTS", NOTE_VALUES, {"pkey"}),
    Case("NOTE_CARRIED_ATTEMPTS", NOTE_VALUES | OF_CARRIER, {"pkey"}),
    Case("NOTE_BEGUN", LEASE_VALUES | OF_CARRIER, {"pkey"}),
    Case("LOST_LEASES", LEASE_VALUES, {"pkey"}),
    Case("APPEND_CANCELLED_ERRORS", LEASE_VALUES | {"errors": ['{"message": "no"}'] * 300}, {"pkey"}),
    Case(
        "APPEND_CANCELLED_ERRORS_CARRIED", LEASE_VALUES | {"errors": ['{"message": "no"}'] * 300} | OF_CARRIER, {"pkey"}
    ),
    Case("DISCARD", BY_ANNA_WITH_ERROR | {"ids": SOME_IDS}, {"pkey"}),
    Case("DISCARD", BY_ANNA_WITH_ERROR | {"ids": list(range(64_500, 65_500))}, {"pkey"}, "a thousand"),
    Case("HEARTBEAT_WORKERS", {"workers": WORKER_ROWS}, {"skipqueue_worker_pkey"}),
    Case("DELETE_WORKERS", {"worker_ids": [DEAD_WORKER]}, set()),
    Case("HEARTBEAT_WORKER", {"worker_id": WORKER}, set()),
    Case("REQUEST_OF_WORKER", {"worker_id": WORKER, "request": "restart"}, {REQUESTS}),
    Case("HEARTBEATS", {}, set()),
    Case("PAUSE_QUEUE", BY_ANNA | {"name": "mail", "seconds": 60.0}, {QUEUES}),
    Case("RESUME_QUEUE", {"name": "queue 7"}, {QUEUES}),
    Case("LIMIT_QUEUE", {"name": "mail", "concurrency": 3}, {QUEUES}),
    Case("BLOCK_SURPLUS", {"limit": 1000}, {"limit_held", "pkey"}),
    Case("PAUSED_QUEUES", {"limit": 10}, set()),
    Case("LOCK_KEYS", {"ids": as_array(range(100_001, 100_301)), "keys": ["key 7"]}, {"pkey"}),
    Case("ADMIT_WITHOUT_WAITING", {}, set()),
    Case("ADMIT_BY_KEY", {}, {"limit_held", "limit_waiting", QUEUES}),
    Case("CHOOSE_BY_KEY", {}, {"limit_held", "limit_waiting", QUEUES}),
    Case("CLAIM_OR_ADMIT", CLAIM_VALUES, {"claim", QUEUES}),
    Case("CLAIM_AHEAD", CLAIM_AHEAD_VALUES, {"pkey", "limit_waiting", QUEUES}),
    Case("CLAIM_OR_ADMIT", CLAIM_VALUES | {"limit": 1}, {"claim", QUEUES}, "a single one"),
    Case("LOCK_KEY", {"key": "key 7"}, set()),
    Case("ADMIT_LONE", {"id": 100_008, "key": "queue:queue 8"}, {"pkey", "limit_held", "limit_waiting", QUEUES}),
    Case("BLOCKED_KEYS", {"after": "key 1", "limit": 1000}, {"limit_held", "limit_waiting", QUEUES}),
    Case(
        "CONTESTED_PERMITS",
        SERVED_QUEUES_VALUES | {"after": "key 1", "limit": 1000},
        {"limit_held", "limit_waiting", "recover"},
    ),
    Case("PASS_PERMITS_ON", SERVED_QUEUES_VALUES | {"ids": None}, {"limit_held", "limit_waiting", "pkey", "recover"}),
    Case(
        "PASS_PERMITS_ON",
        IDLE_QUEUES_VALUES | {"ids": as_array([100_007])},
        {"limit_held", "limit_waiting", "pkey", "recover"},
        "held up",
    ),
    Case("HALTED_KEYS", {"limit": 100}, {"halted", "limit_waiting"}),
    Case("WAITING_KEYS", {"after": "key 1", "limit": 100}, {"limit_waiting"}),
    Case("FIRST_BLOCKED_KEYS", {"limit": 500, "most": 20}, {"blocked"}),
    Case("KEYS_NOW", {"keys": [f"key {n}" for n in range(40)], "limit": 500}, {"limit_held", "limit_waiting", QUEUES}),
    Case(
        "RATE_KEYS_NOW",
        {"keys": [f"key {n}" for n in range(40)], "limit": 500},
        {"rate_waiting", "rate_queued", BUCKETS, QUEUES},
    ),
    Case("LAST_JOBS_OF_WORKER", {"name": "w", "limit": 100}, {"prune", "recover", "admit"}),
    Case("PROCESSES_OF_WORKER", {"name": "w", "limit": 100, "died": "x"}, {"prune", "recover", "admit"}),
    Case("BLOCKED_BY_QUEUE", {"limit": 1000}, {"blocked"}),
    Case("EXPECTED_BLOCKED", {}, {"blocked"}),
    Case("LOCK_RATES", {"keys": ["key 7"]}, set()),
    Case("ADMIT_BY_RATE", {}, {"rate_waiting", "rate_queued", BUCKETS, QUEUES}),
    Case("NEXT_RATE", {}, {DUE_RATES}),
    Case("DUE_RATES", {"limit": 100}, {DUE_RATES}),
    Case("BLOCKED_RATES", {"after": "key 1", "limit": 1000}, {"rate_waiting", BUCKETS, QUEUES}),
    Case(
        "CONTESTED_TOKENS",
        SERVED_QUEUES_VALUES | {"after": "key 1", "limit": 1000},
        {"rate_waiting", "rate_queued", "recover"},
    ),
    Case("PASS_TOKENS_ON", SERVED_QUEUES_VALUES | {"ids": None}, {"rate_waiting", "rate_queued", "pkey", "recover"}),
    Case("RATE_QUEUE", {"name": "mail", "interval": 0.02, "burst": 50}, {QUEUES}),
    Case("BLOCK_UNRATED", {"limit": 1000}, {"rate_queued", "pkey"}),
    Case("PRUNE_RATES", {"limit": 100}, {DUE_RATES}),
    Case("HAND_OVER", LEASE_VALUES | {"carrier_id": CARRIER}, {"pkey"}),
    Case("CARRIED_COUNT", {"carrier": "celery", "carrier_id": WORKER, "worker_timeout": 60.0}, {"recover"}),
    Case("CARRIED_BY_TASK", {"carrier_id": WORKER}, {"recover"}),
    Case("CARRIED_BEFORE", {"carrier_id": WORKER, "claimed_until": IN_2030}, {"recover"}),
    Case("CLOCK_NOW", {}, set()),
    Case(
        "HEARTBEAT",
        OF_CARRIER | {"relay_id": WORKER, "is_reached": True, "refused": 1},
        {"skipqueue_celery_worker_pkey"},
    ),
    Case("CARRIER_SINCE", {"carrier_id": WORKER}, set()),
    Case("CANCELLED_JOBS", {"carrier_id": WORKER, "seconds": 2.0, "limit": 1000}, {"prune"}),
    Case("PRUNE_WORKERS", {"worker_ids": [DEAD_WORKER], "age": 60.0}, {"recover"}),
    Case("STEPS", {"job_id": 70_100}, {STEPS}),
    Case("RECORD_STEP", NEXT_STEP_VALUES, {"pkey", STEPS}),
    Case("RECORD_STEP_AND_RESET", STEP_VALUES, {"pkey", STEPS}),
    Case("TAKE_SIGNAL", WAIT_VALUES, {"pkey", STEPS, UNTAKEN_SIGNALS}),
    Case("SEND_SIGNAL", BY_ANNA | {"ids": WAITING_IDS, "name": "go", "payload": "1"}, {"pkey", SIGNALS}),
    Case("WAKE", {"ids": WAITING_IDS, "limit": 1000}, {"pkey", STEPS, UNTAKEN_SIGNALS}),
    Case(
        "READY",
        {"after_id": 70_100, "after_name": "go", "limit": 1000},
        {"pkey", STEPS, SIGNALS, UNTAKEN_SIGNALS, DUE_STEPS},
        instead={"skipqueue_job_pkey", STEPS, UNTAKEN_SIGNALS, DUE_STEPS},  # where the table has few signals
    ),
    Case("NEXT_READY", {}, {DUE_STEPS, UNTAKEN_SIGNALS}),
    Case("ADD_CHILDREN", {"job_id": 99_001, "name": "kids", "ids": as_array(range(40_001, 40_011))}, {"pkey", NEEDS}),
    Case("CHILDREN", {"job_id": 74_100, "name": "kids"}, {"pkey", CHILDREN}),
    Case("HOLD_AGAIN", {"job_id": 80_100, "lease": 1, "ids": as_array([70_100])}, {"pkey", NEEDS}),
    Case("FORGET_CHILDREN", {"job_id": 80_100, "ids": as_array([70_100])}, {NEEDS}),
    Case("END_WAITS", {"ids": as_array([70_100, 74_100])}, {"pkey", STEPS, CHILDREN, "skipqueue_child_job"}),
    Case("END_SLEEPS", {"ids": as_array([72_100])}, {STEPS}),
    Case("MOVE_SLEEPS", {"ids": as_array([72_100])}, {"pkey", STEPS}),
    Case("REOPEN_FAILED", {"ids": as_array([72_100])}, {"pkey", STEPS}),
    Case("WITH_STEP", {"ids": as_array([72_100]), "step": "nap"}, {STEPS}),
    Case("FORGET_STEPS", {"ids": as_array([50_000]), "step": "book"}, {"pkey", STEPS, SIGNALS, CHILDREN, NEEDS}),
    Case("COPY_STEPS", {"ids": as_array([50_000]), "copy_ids": as_array([99_001]), "step": "book"}, {STEPS}),
    Case("STEP_COUNTS", {}, {"pkey", "skipqueue_step_waiting", "skipqueue_step_sleeping", "skipqueue_signal_oldest"}),
    Case("UNTAKEN", {"seconds": 3600.0}, {"pkey", "skipqueue_signal_oldest"}),
    Case("FORGET", {"ids": as_array([50_000, 74_100])}, {STEPS, SIGNALS, CHILDREN}),
]

# 60,000 jobs are finished, 24,000 are not due yet, 8,000 are queued in another queue, 7,000 can be claimed,
# and 1,000 are running. Some have unique keys.
INSERT_JOBS = """
INSERT INTO skipqueue_job (
    id, queue_name, task, args, kwargs, status, priority, attempts, run_after, enqueued_at, lease, locked_at, locked_by,
    finished_at, unique_key, errors, batch_id
)
SELECT
    number,
    CASE
        WHEN number BETWEEN 84001 AND 92000 THEN 'backlog'
        ELSE (ARRAY['mail', 'default', 'reports'])[1 + number %% 3]
    END,
    'shop.jobs.task_' || number %% 7,
    jsonb_build_array(number),
    '{}',
    status,
    (ARRAY[0, 0, 0, 10, -10])[1 + number %% 5],
    1,
    now() + CASE WHEN status = 'scheduled' AND number > 60200 THEN 1 ELSE -1 END * number * interval '1 second',
    now() - number * interval '1 second',
    1,
    CASE WHEN status = 'running' THEN now() - number %% 300 * interval '1 second' END,
    CASE WHEN status = 'running' THEN (ARRAY[%(worker)s, %(dead)s])[1 + number %% 2] ELSE '' END,
    CASE WHEN status IN ('completed', 'failed', 'discarded') THEN now() - number * interval '1 minute' END,
    CASE WHEN number %% 10 = 0 THEN 'key-' || number END,
    CASE WHEN status = 'failed' THEN '[{"message": "no"}]'::jsonb ELSE '[]'::jsonb END,
    CASE WHEN number > 50000 THEN 20000 - number / 1000 END
FROM
    generate_series(1, 100000) AS number,
    LATERAL (
        SELECT CASE
            WHEN number <= 36000 THEN 'completed'
            WHEN number <= 60000 THEN (ARRAY['failed', 'discarded'])[1 + number %% 2]
            WHEN number <= 84000 THEN 'scheduled'
            WHEN number <= 99000 THEN 'queued'
            ELSE 'running'
        END AS status
    ) AS state
"""


# Five hundred keys of limits and sequences, each with a job that holds a permit, and nineteen jobs that wait for one.
INSERT_LIMITED_JOBS = """
INSERT INTO skipqueue_job
    (id, queue_name, task, args, kwargs, status, gate, lease, limit_key, limit_kind, capacity)
SELECT
    number, 'limited', 'shop.limited', '[]', '{}', CASE WHEN number <= 100500 THEN 'queued' ELSE 'blocked' END,
    CASE WHEN number > 100500 THEN 'limit' END, 0,
    CASE number % 500 WHEN 8 THEN 'queue:queue 8' ELSE 'key ' || number % 500 END,
    CASE WHEN number % 500 BETWEEN 20 AND 40 THEN 'fair'
    ELSE (ARRAY['concurrency', 'sequence', 'halting'])[1 + number % 500 % 3] END,
    CASE WHEN number % 500 % 3 = 0 THEN 2 ELSE 1 END
FROM generate_series(100001, 110000) AS number
"""

# Five hundred keys of rates, each with a job that has a token, and nineteen jobs that wait for a token. Also the
# buckets of these keys and of 5,000 other keys, most of which are full.
INSERT_RATED_JOBS = """
INSERT INTO skipqueue_job
    (id, queue_name, task, args, kwargs, status, gate, rate_key, rate_interval, rate_burst)
SELECT
    number, 'rated', 'shop.rated', '[]', '{}', CASE WHEN number <= 110500 THEN 'queued' ELSE 'blocked' END,
    CASE WHEN number > 110500 THEN 'rate' END,
    CASE number % 500 WHEN 8 THEN 'queue:queue 8' ELSE 'key ' || number % 500 END, 60, 1
FROM generate_series(110001, 120000) AS number;
INSERT INTO skipqueue_rate (key, full_at, due_at)
SELECT
    'key ' || number,
    now() + (500 - number) * interval '1 second',
    CASE WHEN number < 500 THEN now() + number * interval '1 second' END
FROM generate_series(0, 5500) AS number
"""

# Two thousand queues that were paused once. Five queues are paused now, and two queues have a limit and a rate.
INSERT_QUEUES = """
INSERT INTO skipqueue_queue (name, paused_at, paused_until, concurrency, rate_interval, rate_burst)
SELECT
    'queue ' || number, now(), CASE WHEN number > 5 THEN now() - interval '1 hour' END,
    CASE WHEN number BETWEEN 8 AND 9 THEN 3 END, CASE WHEN number BETWEEN 8 AND 9 THEN 60 END,
    CASE WHEN number BETWEEN 8 AND 9 THEN 1 END
FROM generate_series(1, 2000) AS number
"""

# Counts of two tasks, for three days by minute and ten days by hour, and counts of 500 other tasks. Failures with 200
# causes, by minute, by hour and since the beginning, and 2,000 causes of other tasks.
INSERT_ROLLUPS = """
INSERT INTO skipqueue_rollup (span, queue_name, task, starts_at)
SELECT span, 'mail', task, now() - number * make_interval(secs => span)
FROM
    (VALUES (0, 1), (60, 4320), (3600, 240)) AS kind (span, most), LATERAL generate_series(1, most) AS number,
    (VALUES ('shop.send'), ('')) AS task (task);
INSERT INTO skipqueue_rollup (span, queue_name, task, starts_at)
SELECT 0, 'mail', 'shop.t' || number, to_timestamp(0) FROM generate_series(1, 500) AS number;
INSERT INTO skipqueue_failure_rollup
    (span, task, exception, place, starts_at, number, first_at, last_at, last_job_id)
SELECT
    span, 'shop.send', 'ValueError', 'shop.f' || cause, now() - number * make_interval(secs => span), 1, now(),
    now() - number * make_interval(secs => span), 7
FROM
    generate_series(1, 200) AS cause, (VALUES (0, 1), (60, 120), (3600, 240)) AS kind (span, most),
    LATERAL generate_series(1, most) AS number;
INSERT INTO skipqueue_failure_rollup
    (span, task, exception, place, starts_at, number, first_at, last_at, last_job_id)
SELECT 0, 'shop.t' || number, 'ValueError', 'shop.f', to_timestamp(0), 1, now(), now(), 7
FROM generate_series(1, 2000) AS number;
INSERT INTO skipqueue_rollup_progress (id, counted_to, ready_to, ready_xid, seen_to) VALUES (1, 99000, 99500, 0, 99900)
"""

# 20,000 batches. The last 100 are open. The last but one has inner batches. The newest jobs belong to the last batches.
INSERT_BATCHES = """
INSERT INTO skipqueue_batch (id, parent_id, callbacks, finished_at, callback_ids, completed, failed, discarded)
SELECT
    number,
    CASE WHEN number % 100 = 0 THEN 19999 END,
    '{}',
    CASE WHEN number <= 19900 THEN now() - (20000 - number) * interval '1 minute' END,
    CASE WHEN number % 100 = 0 THEN ARRAY[number, number + 1] END,
    CASE WHEN number <= 19900 THEN 3 END,
    CASE WHEN number <= 19900 THEN 0 END,
    CASE WHEN number <= 19900 THEN 0 END
FROM generate_series(1, 20000) AS number;
INSERT INTO skipqueue_batch_pruned (batch_id, status, jobs)
SELECT number, 'completed', 1 FROM generate_series(1, 20000) AS number;
INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure, is_met)
SELECT number + 10000, 1, number, (ARRAY['wait', 'run', 'discard'])[1 + number % 3], number <= 70000
FROM generate_series(60001, 80000) AS number;
"""


# Each finished job has a step; 2,000 jobs wait for a signal, which half of them have got; 2,000 jobs sleep; 500 jobs
# wait for forty children each.
INSERT_STEPS = """
INSERT INTO skipqueue_step (job_id, name, kind, number, attempt, started_at, recorded_at, wakes_at, is_waiting)
SELECT number, 'book', 'step', 1, 1, now(), now(), NULL, NULL FROM generate_series(1, 60000) AS number
UNION ALL
SELECT
    number, 'go', 'wait', 1, 1, now() - number * interval '1 second', NULL,
    CASE WHEN number % 2 = 0 THEN now() + number * interval '1 second' END, true
FROM generate_series(70001, 72000) AS number
UNION ALL
SELECT number, 'nap', 'sleep', 1, 1, now(), now(), now() + number * interval '1 second', NULL
FROM generate_series(72001, 74000) AS number
UNION ALL
SELECT number, 'kids', 'run', 1, 1, now(), NULL, NULL, NULL FROM generate_series(74001, 74500) AS number;
INSERT INTO skipqueue_signal (job_id, name, payload, sent_at, taken_at)
SELECT number, 'go', '1', now() - number * interval '1 second', CASE WHEN number <= 60000 THEN now() END
FROM generate_series(50001, 71000) AS number;
INSERT INTO skipqueue_child (parent_id, name, position, job_id)
SELECT 74001 + number / 40, 'kids', number % 40, 40001 + number FROM generate_series(0, 19999) AS number
"""


@pytest.fixture(scope="module")
def busy_table(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a separate schema with the tables as the migrations make them, and 100,000 jobs."""
    with django_db_blocker.unblock(), schema("busy") as migrate, connect(options="-c search_path=busy") as connection:
        migrate(LAST_MIGRATION)
        fill_tables(connection)
        yield connection


def fill_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
    psycopg.ClientCursor(connection).execute(INSERT_JOBS, {"worker": WORKER, "dead": DEAD_WORKER})
    psycopg.ClientCursor(connection).execute(
        "INSERT INTO skipqueue_worker (id, name, hostname, pid, queues, concurrency, heartbeat_at) VALUES "
        "(%s, 'live', 'h', 1, '[]', 4, now()), (%s, 'dead', 'h', 2, '[]', 4, now() - interval '1 hour')",
        [WORKER, DEAD_WORKER],
    )
    connection.execute(INSERT_LIMITED_JOBS)
    connection.execute(INSERT_RATED_JOBS)
    connection.execute(INSERT_QUEUES)
    connection.execute(INSERT_ROLLUPS)
    connection.execute(INSERT_BATCHES)
    connection.execute(INSERT_STEPS)
    connection.execute("VACUUM ANALYZE")


PREPARED_STATEMENT_NUMBERS = count()


def explain_literals(connection: psycopg.Connection[Any], case: Case, explain_options: str = "FORMAT JSON") -> Any:
    """The plan of the statement with its values written into it, as Django sends it."""
    cursor = psycopg.ClientCursor(connection)
    return cursor.execute(f"EXPLAIN ({explain_options}) {STATEMENTS[case.statement]}", case.values or None).fetchone()


def explain_prepared(
    connection: psycopg.Connection[Any], case: Case, explain_options: str = "FORMAT JSON", *, mode: str
) -> Any:
    """The plan of the statement when it is prepared, as the worker sends it, with the types that psycopg declares."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", STATEMENTS[case.statement])))
    text = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", STATEMENTS[case.statement])
    type_dumpers = Transformer(connection)
    type_oids = [
        type_dumpers.get_dumper(case.values[name], PyFormat.AUTO).oid if case.values[name] is not None else 0
        for name in names
    ]
    declared_types = ", ".join("unknown" if not type_oid else type_name(connection, type_oid) for type_oid in type_oids)
    cursor = psycopg.ClientCursor(connection)
    cursor.execute(f"SET plan_cache_mode = {mode}")
    name = f"explained_{next(PREPARED_STATEMENT_NUMBERS)}"  # a new name, because a statement that fails stays prepared
    cursor.execute(f"PREPARE {name}{f' ({declared_types})' if names else ''} AS {text}")
    values = ", ".join(f"%({name})s" for name in names)
    plan = cursor.execute(
        f"EXPLAIN ({explain_options}) EXECUTE {name}{f' ({values})' if names else ''}", case.values or None
    ).fetchone()
    cursor.execute(f"DEALLOCATE {name}; RESET plan_cache_mode")
    return plan


@cache
def type_name(connection: psycopg.Connection[Any], oid: int) -> str:
    row = psycopg.ClientCursor(connection).execute("SELECT format_type(%s, NULL)", [oid]).fetchone()
    assert row
    return str(row[0])


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


MODES: dict[str, Callable[..., Any]] = {
    "literals": explain_literals,
    "generic plan": partial(explain_prepared, mode="force_generic_plan"),
    "custom plan": partial(explain_prepared, mode="force_custom_plan"),
}


PLANNED = [case for case in CASES if case.statement not in WITHOUT_A_PLAN]
FIRST_CASE_BY_STATEMENT = {case.statement: case for case in reversed(CASES)}
"""The first case of each statement."""


def plan_of(connection: psycopg.Connection[Any], case: Case, mode: str) -> tuple[list[dict[str, Any]], str]:
    """The nodes of the statement's plan, and the plan as a text for the message of an assertion."""
    ((document,),) = MODES[mode](connection, case)
    return list(nodes(document["Plan"])), json.dumps(document, indent=1)


@pytest.mark.django_db
def test_every_statement_uses_its_index_among_a_hundred_thousand_rows(
    busy_table: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for case, mode in product(PLANNED, MODES):
        with subtests.test(statement=case.statement, label=case.label, mode=mode):
            plan_nodes, plan_text = plan_of(busy_table, case, mode)
            scanned_tables = {node["Relation Name"] for node in plan_nodes if node["Node Type"] == "Seq Scan"}
            assert "skipqueue_job" not in scanned_tables, plan_text
            used_indexes = {
                node["Index Name"] for node in plan_nodes if node.get("Index Name", "").startswith("skipqueue")
            }
            used_indexes |= {name for node in plan_nodes for name in node.get("Conflict Arbiter Indexes", ())}
            expected_indexes = {
                name if name.startswith("skipqueue") else f"skipqueue_job_{name}" for name in case.indexes
            }
            assert {INDEX_TWINS.get(name, name) for name in used_indexes} in (
                expected_indexes,
                case.instead or expected_indexes,
            ), plan_text


@pytest.mark.django_db
def test_ordered_statements_read_an_index_in_order_without_a_sort(
    busy_table: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for case, mode in product((FIRST_CASE_BY_STATEMENT[name] for name in ("CLAIM", "ADMIT", "NEXT_DUE")), MODES):
        with subtests.test(statement=case.statement, mode=mode):
            plan_nodes, plan_text = plan_of(busy_table, case, mode)
            assert not [node for node in plan_nodes if "Sort" in node["Node Type"]], plan_text


@pytest.mark.django_db
def test_the_jobs_of_a_queue_are_counted_from_the_index_alone(
    busy_table: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for mode in MODES:
        with subtests.test(mode=mode):
            plan_nodes, plan_text = plan_of(busy_table, FIRST_CASE_BY_STATEMENT["QUEUED_NOW"], mode)
            counting_nodes = [node for node in plan_nodes if "(queue_name <= " in node.get("Index Cond", "")]
            assert [node["Node Type"] for node in counting_nodes] == ["Index Only Scan"], plan_text


@pytest.mark.django_db
def test_unfinished_jobs_are_found_by_partial_indexes(busy_table: psycopg.Connection[Any]) -> None:
    statement, values = Job.objects.unfinished().order_by().query.sql_with_params()
    with busy_table.transaction(force_rollback=True):
        cursor = psycopg.ClientCursor(busy_table)
        cursor.execute("SET LOCAL enable_seqscan = off")  # many jobs are unfinished
        (((document,),),) = cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", values)
    plan_nodes = list(nodes(document["Plan"]))
    assert {node.get("Index Name") for node in plan_nodes} - {None} == {
        "skipqueue_job_admit",
        "skipqueue_job_blocked",
        "skipqueue_job_claim",
        "skipqueue_job_recover",
    }
    assert not [node for node in plan_nodes if node["Node Type"] == "Seq Scan"]


FIELDS_BY_STATEMENT: dict[str, tuple[str, ...]] = {
    "TAKE_OVER": ClaimedJob._fields[:-1],
    "CLAIM": ClaimedJob._fields[:-1],  # the worker sets the last field, `claimed_at`
    "CLAIM_OR_ADMIT": ClaimedJob._fields[:-1],
    "ENQUEUE": EnqueuedJob._fields[2:],  # the caller has sent the first two fields
    "FIRST_IN_QUEUES": ("queue_name", "job_id", *QueuePosition._fields),
    "RECOVER": RecoveredJob._fields,
    "RECOVER_RETURNED": RecoveredJob._fields,
    "ADMIT_DEPENDANTS": Dependant._fields,
    "NEEDS": NeededJob._fields,
    "UNMET_NEEDS": UnmetNeed._fields,
}


@pytest.mark.django_db
def test_rows_that_become_a_record_have_its_fields_in_their_order(
    busy_table: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for statement, fields in FIELDS_BY_STATEMENT.items():
        with subtests.test(statement=statement), busy_table.transaction(force_rollback=True):
            returned_columns = busy_table.execute(
                STATEMENTS[statement], FIRST_CASE_BY_STATEMENT[statement].values
            ).description
            assert tuple(column.name for column in returned_columns or ()) == fields


def test_the_plan_of_every_statement_is_tested() -> None:
    assert {case.statement for case in CASES} == set(STATEMENTS)


def test_every_value_of_a_case_is_a_parameter_of_its_statement() -> None:
    for case in CASES:
        assert set(re.findall(r"%\((\w+)\)s", STATEMENTS[case.statement])) == set(case.values), case.statement


def test_an_insert_writes_every_field_of_a_job_spec() -> None:
    """The driver ignores values that a statement does not name: a forgotten column would be lost without an error."""
    for name in ("ENQUEUE", "ENQUEUE_MANY", "ENQUEUE_MANY_UNIQUE"):
        parameters = set(re.findall(r"%\((\w+)\)s", STATEMENTS[name]))
        assert parameters >= insert_values(JobSpec("t")).keys() - NO_PARAMETERS - CALL_KEYS.keys(), name
        assert parameters & CALL_KEYS.keys() or parameters >= {f"{key}s" for key in CALL_KEYS}, name


NO_PARAMETERS = {"columns", "after", "after_failure", "on_conflict"}
"""Fields of a spec that are not columns."""


def test_a_job_spec_is_plain_only_if_the_plain_insert_writes_all_its_fields() -> None:
    parameters = set(re.findall(r"%\((\w+)\)s", STATEMENTS["ENQUEUE_PLAIN"]))
    plain_spec: Any = JobSpec("t")
    assert plain_spec.is_plain
    for name in set(JobSpec._fields) - {"after_failure", "on_conflict"}:  # without another field these do nothing
        assert plain_spec._replace(**{name: 1.0}).is_plain is (name in parameters), name


STATEMENTS_OF_OTHER_FORM = (
    "EXPIRED",
    "COUNT_ENQUEUED",
    "LOCK_BATCHES",
    "LOCK_DEPENDANTS",
    "LOCK_UNLOCKED_HOLDERS",
    "RETRY",
)
"""Statements that lock rows for a later statement of their transaction, and two statements of another form."""


def test_statements_that_skip_locked_rows_choose_rows_once_and_look_them_up() -> None:
    """Another form may choose rows again for every row that it compares, or read the whole table."""
    row_columns, id_columns = r"(job|rollup|request|batch|needs|bucket)\.(id|ctid|worker_id)", "(id|place|worker_id)"
    lookup_pattern = rf"WHERE {row_columns} = ANY \(ARRAY \(SELECT {id_columns} FROM \w+( WHERE [\w ]+)?\)\)"
    ways_to_bound = ("LIMIT ", "%(ids)s::bigint[])", "= ANY (%(unique_keys)s::text[])")
    for name, text in STATEMENTS.items():
        if "SKIP LOCKED" in text and name not in STATEMENTS_OF_OTHER_FORM:
            assert " AS MATERIALIZED (" in text, name
            assert re.search(lookup_pattern, text), name
            assert any(bound in text for bound in ways_to_bound), f"{name} is not bounded"


def test_statements_fenced_by_a_lease_find_rows_only_by_id_and_lease() -> None:
    """If the condition had a status as well, the planner might walk the whole recover index."""
    for name in ("SETTLE", "SETTLE_SNOOZES", "RELEASE", "HEARTBEAT_JOB", "HAND_OVER"):
        condition = STATEMENTS[name].rsplit("WHERE", 1)[1].split("RETURNING")[0]
        assert set(re.findall(r"job\.(\w+)", condition)) == {"id", "lease"}, name


def test_statements_sent_often_are_short_enough_for_the_drivers_cache() -> None:
    frequent_statements = (
        "SETTLE",
        "CLAIM",
        "LOCK_KEYS",
        "CHOOSE_BY_KEY",
        "CLAIM_OR_ADMIT",
        "ADMIT_BY_KEY",
        "ENQUEUE_AND_ADMIT",
    )
    for name in frequent_statements:
        assert len(unindented(STATEMENTS[name]).encode()) <= MAX_CACHED_STATEMENT_LENGTH, name


def test_statements_for_carried_jobs_also_check_the_holder() -> None:
    statements_of_carrier = {
        name for name, text in STATEMENTS.items() if "%(carrier_id)s" in text and "UPDATE skipqueue_job" in text
    }
    assert statements_of_carrier - {"HAND_OVER", "RECOVER_RETURNED"} == {
        "SETTLE_CARRIED", "SETTLE_CARRIED_SNOOZES", "RELEASE_CARRIED", "NOTE_CARRIED_ATTEMPTS",
        "APPEND_CANCELLED_ERRORS_CARRIED", "NOTE_BEGUN",
    }  # fmt: skip
    for name in ("SETTLE_CARRIED", "SETTLE_CARRIED_SNOOZES", "RELEASE_CARRIED", "NOTE_BEGUN"):
        condition = STATEMENTS[name].rsplit("WHERE job.id", 1)[1].split("RETURNING")[0]
        assert set(re.findall(r"job\.(\w+)", condition)) == {"lease", "locked_by"}, name
