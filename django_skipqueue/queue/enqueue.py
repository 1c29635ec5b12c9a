"""Insert jobs, on the caller's connection and in the caller's transaction. Tasks make a job of each deferred call."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import Error, transaction
from psycopg.pq import PipelineStatus, TransactionStatus

from ..conf import settings
from ..events.events import JobsAdmitted, JobsDeferred, NotifyFailed
from ..events.tracing import sending, tracers
from ..exceptions import InvalidOption
from ..values.bounds import check_columns
from ..values.part import installed_parts, specs_of_parts
from ..values.records import DeferredJobs, Dependant, EncodedCall, EnqueuedJob, JobSpec
from .fragments import INSERT_CALLS, INSERT_JOB, KEY_COLUMNS, PIECES, WAITING_BY, joined
from .gates import KeyGate, admit_after_commit, key_gates
from .notify import wake, wake_supervisors
from .parameters import call_values, calls_as_values, insert_values, unindented
from .queues import columns_of_queue
from .silence import ended_by_silence
from .unique_keys import explained_deadlock, unique_keys

if TYPE_CHECKING:
    from .store import Store

# enqueue of a job that is due now and has no key, no batch and no time limit or retention of its own → its id, and the
# time of the enqueue, which is also its due time. ENQUEUE takes a third longer: it writes 13 more columns, and looks
# for the holder of a key.
ENQUEUE_PLAIN = """
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, 'queued', %(priority)s, %(max_attempts)s,
    %(metadata)s::jsonb
)
RETURNING id, enqueued_at"""

# enqueue → the columns that the database has set; no row if a job holds the unique key. Index: unique.
ENQUEUE = joined(
    """
{insert}{unless_held}
RETURNING id, status, gate, run_after, enqueued_at, true AS is_new
""",
    insert=INSERT_JOB,
    unless_held=PIECES["unless_held"],
)

# enqueue of a plain job outside of a transaction → as ENQUEUE_PLAIN, and what was set, as the second of four results.
# The client sends all of it in one message: the INSERT, its commit, and the NOTIFY after it, in a transaction of its
# own. A setting of the session keeps what was inserted, under a text that is different in each call; PostgreSQL takes
# the setting back if the INSERT is not committed.
ENQUEUE_AND_NOTIFY = joined(
    """
BEGIN;{insert}, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
SELECT pg_notify('skipqueue', %(queue_name)s) FROM set_config('synchronous_commit', 'off', true)
""",
    insert=ENQUEUE_PLAIN,
)

# enqueue, after an error of ENQUEUE_AND_NOTIFY → the id of the job and the time of the enqueue; no row if the job is
# not committed, or if a pooler has moved the client to another session. Reads no table.
INSERTED = """
SELECT part[2]::bigint, part[3]::timestamptz
FROM string_to_array(current_setting('skipqueue.inserted', true), '|') AS part
WHERE part[1] = %(call)s
"""

# enqueue_many, calls without unique keys → one row: the ids of the inserted jobs, the number of those that are queued,
# and the seconds until all are due.
# There is no ON CONFLICT: it makes PostgreSQL insert each row tentatively and confirm it, which takes a sixth longer.
ENQUEUE_MANY = joined(
    """
WITH inserted AS (
{insert}
RETURNING id, status, run_after
)
SELECT
    array_agg(id),
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted
""",
    insert=INSERT_CALLS,
)

NO_CONTEXT = nullcontext()


def enqueue(store: "Store", spec: JobSpec, call: EncodedCall) -> EnqueuedJob | None:
    """Insert one job, and return what was written. Returns `None` if a job holds the call's unique key.

    If the spec says so, a waiting holder takes the arguments and the due time of the call, and is returned.

    Raises `InvalidOption` for a value of the spec that the table cannot store, and `UniqueKeyDeadlock` if another
    transaction waits for this one with a key that this one waits for.
    """
    spec, around = _in_context(store, spec)
    with around:
        if not tracers:
            return enqueue_untraced(store, spec, call)
        with sending(spec, 1, store.alias) as batch:
            enqueued = enqueue_untraced(store, batch.spec, call)
            batch.job_ids = [enqueued.id] if enqueued else []
            return enqueued


def enqueue_untraced(store: "Store", spec: JobSpec, call: EncodedCall) -> EnqueuedJob | None:
    """Insert one job as `enqueue` does, without tracers: none runs in the main thread of a supervisor."""
    spec = _checked(spec)
    [call] = with_queue_limits(spec.queue_name, (call,))
    is_plain = spec.is_plain and not call.columns
    gate = None if is_plain else _lone_gate(spec, call)
    if (is_plain or gate) and store.connection.get_autocommit():
        with store.connection.cursor() as cursor:
            if _takes_transactions(cursor):
                return _enqueue_alone(store, cursor, spec, call, gate)
    if not is_plain:
        return _enqueue_any(store, spec, call)
    [(id, now)] = store.rows(ENQUEUE_PLAIN, {**spec._asdict(), **call_values(call)})
    wake(store, (spec.queue_name,))
    store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, [id]))
    return EnqueuedJob(spec, call, id, "queued", None, now, now)


def _enqueue_any(store: "Store", spec: JobSpec, call: EncodedCall) -> EnqueuedJob | None:
    values = insert_values(spec) | call_values(call)
    with NO_CONTEXT if call.unique_key is None else explained_deadlock():
        rows = [EnqueuedJob(spec, call, *row) for row in store.rows(ENQUEUE, values)]
        if spec.replaces and not rows:
            rows = [
                EnqueuedJob(spec, call, each.id, each.status, each.gate, each.run_after, each.enqueued_at, is_new=False)
                for each in unique_keys().replace_waiting(store, values, [call])
            ]
    for enqueued in rows:
        is_later = enqueued.status == "scheduled"  # a job that is replaced was enqueued before
        delay = (enqueued.run_after - enqueued.enqueued_at).total_seconds() if is_later else 0.0
        new = [enqueued.id] if enqueued.is_new else []
        for passed in _enqueued(store, spec, new, [call], queued=int(enqueued.status == "queued"), delay=delay):
            return enqueued._replace(status=passed.status, gate=passed.gate)
        return enqueued
    return None


def with_queue_limits(queue_name: str, calls: Sequence[EncodedCall]) -> Sequence[EncodedCall]:
    """The calls of one task, with the limits that `SKIPQUEUE["QUEUES"]` gives to their queue."""
    if queue_name not in settings.queues:  # few queues have limits: for all others this must cost nothing
        return calls
    columns = columns_of_queue(queue_name, calls)
    return [call._replace(columns={**call.columns, **columns}) for call in calls] if columns else calls


def _in_context(store: "Store", spec: JobSpec) -> tuple[JobSpec, AbstractContextManager[Any]]:
    """The spec with what the caller's block adds, such as a batch, and the context of the statements."""
    for in_spec in specs_of_parts:
        spec = in_spec(spec, store.connection)
    return spec, _around(store, spec) if spec.after or settings.is_spread else NO_CONTEXT


@contextmanager
def _around(store: "Store", spec: JobSpec) -> Iterator[None]:
    """Under `spread`, end the wait for a server that hangs: another database takes the job.

    Jobs that need other jobs are inserted in a transaction.
    """
    answered = ended_by_silence(store.connection) if settings.is_spread else NO_CONTEXT
    with answered, transaction.atomic(using=store.alias) if spec.after else NO_CONTEXT:
        yield


def _lone_gate(spec: JobSpec, call: EncodedCall) -> KeyGate | None:
    """The gate that admits the job in the message that inserts it.

    `None`: the job waits at no gate, or at several gates.
    """
    if spec.run_after is not None or call.unique_key is not None or not WAITING_BY.isdisjoint(spec.columns):
        return None
    keyed = [gate for gate in key_gates() if KEY_COLUMNS[gate.name] in call.columns]
    return keyed[0] if len(keyed) == 1 and keyed[0].enqueue_alone else None


def _enqueue_alone(store: "Store", cursor: Any, spec: JobSpec, call: EncodedCall, gate: KeyGate | None) -> EnqueuedJob:
    """Insert one job, commit, admit it if it waits at a gate, and notify the workers, in one round trip."""
    statement = unindented(gate.enqueue_alone if gate and gate.enqueue_alone else ENQUEUE_AND_NOTIFY)
    mark, is_admitted = token_hex(8), False
    try:
        cursor.execute(statement, {**insert_values(spec), **call_values(call), "call": mark})
        cursor.nextset()  # the first result is that of BEGIN
        id, now, *_ = cursor.fetchone()
        while gate and cursor.nextset():
            is_admitted = bool(cursor.rowcount)
    except BaseException as error:
        _end_transaction(store)
        rows = []  # the job that this call has inserted and committed; empty if nobody knows of one
        if isinstance(error, Error):
            with suppress(Error):
                rows = store.rows(INSERTED, {"call": mark})
        if not rows:
            raise
        [(id, now)] = rows
        is_admitted = False
        store.send(NotifyFailed(store.alias, spec.queue_name, error))
    store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, [id]))
    if gate is None:
        return EnqueuedJob(spec, call, id, "queued", None, now, now)
    if is_admitted:
        store.send(JobsAdmitted(store.alias, {spec.queue_name: 1}))
        return EnqueuedJob(spec, call, id, "queued", None, now, now)
    admit_after_commit(store, _keys_of([call], None), is_urgent=spec.priority > 0)
    return EnqueuedJob(spec, call, id, "blocked", gate.name, now, now)


def _end_transaction(store: "Store") -> None:
    raw = store.connection.connection
    if raw is not None and raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            raw.rollback()


def enqueue_many(store: "Store", spec: JobSpec, calls: Sequence[EncodedCall]) -> DeferredJobs:
    """Insert a job for each of `calls`: in one statement if no call has a unique key.

    Returns the ids in the order of the calls, and the outcome of each call. If a job holds the unique key of a call,
    the id of that job is returned for the call. Raises what `enqueue` raises, and `UniqueKeyTaken` if the spec's
    `on_conflict` says so.
    """
    spec, around = _in_context(store, spec)
    with around:
        if not (tracers and calls):
            return _enqueue_many(store, spec, calls).all_in(store.alias)
        with sending(spec, len(calls), store.alias) as batch:
            batch.job_ids = deferred = _enqueue_many(store, batch.spec, calls).all_in(store.alias)
            return deferred


def _enqueue_many(store: "Store", spec: JobSpec, calls: Sequence[EncodedCall]) -> DeferredJobs:
    spec = _checked(spec)
    values = insert_values(spec)
    calls = with_queue_limits(spec.queue_name, calls)
    if any(call.unique_key is not None for call in calls):
        with explained_deadlock():
            return unique_keys().enqueue_unique(store, spec, values, calls, announce=_enqueued)
    if not calls:
        return DeferredJobs()
    [(inserted, queued, delay)] = store.rows(ENQUEUE_MANY, {**values, **calls_as_values(calls)})
    _enqueued(store, spec, inserted, calls, queued=queued, delay=delay)
    return DeferredJobs(sorted(inserted))


def _enqueued(
    store: "Store", spec: JobSpec, ids: list[int], calls: Sequence[EncodedCall], *, queued: int, delay: float
) -> list[Dependant]:
    """Notify the workers if any job is queued, the supervisors if the jobs are due soon, and send the event.

    After the commit, jobs with keys of gates are admitted. A job waits for the jobs that it needs. Returns the
    jobs that need not wait, because the jobs that they need are finished.
    """
    holds = [part.hold for part in installed_parts() if part.hold] if spec.after and ids else []
    passed = [job for hold in holds for job in hold(store, spec, ids)]
    queued += sum(job.status == "queued" for job in passed)
    if delay <= 0 and (waiting := _keys_of(calls, ids[0] if len(ids) == 1 else None)):
        admit_after_commit(store, waiting, is_urgent=spec.priority > 0)
    if queued:
        wake(store, {spec.queue_name: queued})
    wake_supervisors(store, [delay])
    if ids:
        store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, ids))
    return passed


def _keys_of(calls: Sequence[EncodedCall], lone: int | None) -> dict[str, dict[str, int | None]]:
    """The keys at whose gates these calls wait first, as `Admission` takes them. `lone`: the id of the only job."""
    waiting: dict[str, dict[str, int | None]] = {}
    for gate, column in KEY_COLUMNS.items():
        if keys := {call.columns[column] for call in calls if column in call.columns}:
            waiting[gate] = dict.fromkeys(keys, lone)
            calls = [call for call in calls if column not in call.columns]
    return waiting


def new_job(
    store: "Store", insert: Callable[[JobSpec, EncodedCall], EnqueuedJob | None], spec: JobSpec, call: EncodedCall
) -> EnqueuedJob | None:
    """Insert a job by this function. `None` if another job holds its unique key. Frees the key if its time is over."""
    spec = spec._replace(on_conflict="skip")
    inserted = insert(spec, call)
    if inserted is None and call.unique_key is not None and unique_keys().free_unique_keys(store, [call.unique_key]):
        return insert(spec, call)
    return inserted


def _checked(spec: JobSpec) -> JobSpec:
    """The spec with the default of `max_attempts`. Raises `InvalidOption` for a value that the table cannot store."""
    check_columns(spec._asdict())
    if spec.after and spec.replaces:
        raise InvalidOption(
            "after and on_conflict='replace' do not go together: a job that waits already keeps what it waits for."
        )
    return spec if spec.max_attempts is not None else spec._replace(max_attempts=settings.max_attempts)


def _takes_transactions(cursor: Any) -> bool:
    """Whether this cursor can send a transaction of its own in one message.

    Not within a transaction that the caller has begun without Django, in pipeline mode, or with a cursor that binds its
    parameters on the server: only the simple protocol takes several statements in one message.
    """
    raw = getattr(cursor, "cursor", None)
    if not isinstance(raw, psycopg.ClientCursor):
        return False
    session = raw.connection.pgconn
    return session.transaction_status == TransactionStatus.IDLE and session.pipeline_status == PipelineStatus.OFF
