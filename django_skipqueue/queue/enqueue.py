"""Insert jobs, on the caller's connection and in the caller's transaction. `.defer()` calls this module."""

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

# Sent by `enqueue` for a plain job: it is due now, and has no key, no batch, no time limit and no retention of its own.
# Returns the job's id and the time of the enqueue, which is also its due time. `ENQUEUE` takes a third longer, because
# it writes 13 more columns, and checks whether another job holds the unique key.
ENQUEUE_PLAIN = """
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, 'queued', %(priority)s, %(max_attempts)s,
    %(metadata)s::jsonb
)
RETURNING id, enqueued_at"""

# Sent by `enqueue`. Returns the columns that the database has set; no row if another job holds the unique key. Index:
# unique.
ENQUEUE = joined(
    """
{insert}{unless_held}
RETURNING id, status, gate, run_after, enqueued_at, true AS is_new
""",
    insert=INSERT_JOB,
    unless_held=PIECES["unless_held"],
)

# Sent by `enqueue` for a plain job outside of a transaction. The client sends all of it in one message: the INSERT, its
# commit, and a NOTIFY in a separate transaction. The second of the four results has the columns of `ENQUEUE_PLAIN`. If
# the connection fails meanwhile, the client must find out whether the job was inserted. So the statement stores the
# job's id in a session setting, together with the random text `call`. PostgreSQL resets the setting if the INSERT is
# not committed.
ENQUEUE_AND_NOTIFY = joined(
    """
BEGIN;{insert}, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
SELECT pg_notify('skipqueue', %(queue_name)s) FROM set_config('synchronous_commit', 'off', true)
""",
    insert=ENQUEUE_PLAIN,
)

# Sent by `enqueue` after `ENQUEUE_AND_NOTIFY` failed. Returns the id of the job and the time of the enqueue; no row if
# the job is not committed, or if a pooler has moved the client to another session. Reads no table.
INSERTED = """
SELECT part[2]::bigint, part[3]::timestamptz
FROM string_to_array(current_setting('skipqueue.inserted', true), '|') AS part
WHERE part[1] = %(call)s
"""

# Sent by `enqueue_many` for calls without unique keys. Returns one row: the ids of the inserted jobs, how many of these
# jobs are queued, and the seconds until the jobs are due.
# There is no ON CONFLICT, because PostgreSQL would then insert each row tentatively and confirm it, which takes a sixth
# longer.
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
    """Insert one job, and return it. Returns `None` if another job holds the call's unique key.

    But if `spec.replaces` and the other job is waiting, that job gets the arguments and the due time of the call, and
    is returned.

    Raises `InvalidOption` for a value of the spec that the table cannot store, and `UniqueKeyDeadlock` if this
    transaction and another transaction wait for each other's unique keys.
    """
    spec, context = _in_context(store, spec)
    with context:
        if not tracers:
            return enqueue_untraced(store, spec, call)
        with sending(spec, 1, store.alias) as traced_insert:
            enqueued = enqueue_untraced(store, traced_insert.spec, call)
            traced_insert.job_ids = [enqueued.id] if enqueued else []
            return enqueued


def enqueue_untraced(store: "Store", spec: JobSpec, call: EncodedCall) -> EnqueuedJob | None:
    """Insert one job as `enqueue` does, but without tracers, which must not run in a supervisor's main thread."""
    spec = _checked(spec)
    [call] = with_queue_limits(spec.queue_name, (call,))
    is_plain = spec.is_plain and not call.columns  # columns of parts, such as a unique key, need a longer INSERT
    gate = None if is_plain else _only_gate(spec, call)
    if (is_plain or gate) and store.connection.get_autocommit():
        with store.connection.cursor() as cursor:
            if _can_send_transaction_in_one_message(cursor):
                return _enqueue_alone(store, cursor, spec, call, gate)
    if not is_plain:
        return _enqueue_any(store, spec, call)
    [(id, enqueued_at)] = store.rows(ENQUEUE_PLAIN, {**spec._asdict(), **call_values(call)})
    wake(store, (spec.queue_name,))
    store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, [id]))
    return EnqueuedJob(spec, call, id, "queued", None, enqueued_at, enqueued_at)


def _enqueue_any(store: "Store", spec: JobSpec, call: EncodedCall) -> EnqueuedJob | None:
    """Insert a job that is not plain, or give the call to a waiting job that holds its unique key."""
    values = insert_values(spec) | call_values(call)
    with NO_CONTEXT if call.unique_key is None else explained_deadlock():
        jobs = [EnqueuedJob(spec, call, *row) for row in store.rows(ENQUEUE, values)]
        if spec.replaces and not jobs:
            jobs = [
                EnqueuedJob(
                    spec,
                    call,
                    old.id,
                    old.status,
                    old.gate,
                    old.run_after,
                    old.enqueued_at,
                    is_new=False,
                )
                for old in unique_keys().replace_waiting(store, values, [call])
            ]
    for enqueued in jobs:  # at most one job
        # A queued job that was replaced is due, although its `run_after` may be long after its `enqueued_at`.
        is_scheduled = enqueued.status == "scheduled"
        delay = (enqueued.run_after - enqueued.enqueued_at).total_seconds() if is_scheduled else 0.0
        new_ids = [enqueued.id] if enqueued.is_new else []
        queued = int(enqueued.status == "queued")
        for passed_job in _after_insert(store, spec, new_ids, [call], queued=queued, delay=delay):
            # The jobs that `spec.after` names are already finished, so the new job need not wait for them.
            return enqueued._replace(status=passed_job.status, gate=passed_job.gate)
        return enqueued
    return None


def with_queue_limits(queue_name: str, calls: Sequence[EncodedCall]) -> Sequence[EncodedCall]:
    """Add the limits that `SKIPQUEUE["QUEUES"]` gives to this queue to calls of one task, and return the calls."""
    if queue_name not in settings.queues:  # most queues have no limits, so this must cost nothing for them
        return calls
    columns = columns_of_queue(queue_name, calls)
    return [call._replace(columns={**call.columns, **columns}) for call in calls] if columns else calls


def _in_context(store: "Store", spec: JobSpec) -> tuple[JobSpec, AbstractContextManager[Any]]:
    """Return the spec with the columns that the caller's `with` block adds, and a context manager for the INSERT."""
    for adapt_spec in specs_of_parts:
        spec = adapt_spec(spec, store.connection)
    return spec, _insert_context(store, spec) if spec.after or settings.is_spread else NO_CONTEXT


@contextmanager
def _insert_context(store: "Store", spec: JobSpec) -> Iterator[None]:
    """The context of an INSERT. If jobs are spread over databases, raise an error when the server does not respond.

    The caller then puts the job into another database. Jobs that wait for other jobs are inserted in a transaction.
    """
    time_limit = ended_by_silence(store.connection) if settings.is_spread else NO_CONTEXT
    transaction_if_needed = transaction.atomic(using=store.alias) if spec.after else NO_CONTEXT
    with time_limit, transaction_if_needed:
        yield


def _only_gate(spec: JobSpec, call: EncodedCall) -> KeyGate | None:
    """Return the gate of a part that can admit the job in the same message that inserts it.

    Returns `None` if the job waits at no such gate, or at several gates.
    """
    if spec.run_after is not None or call.unique_key is not None or not WAITING_BY.isdisjoint(spec.columns):
        return None
    gates_with_key = [gate for gate in key_gates() if KEY_COLUMNS[gate.name] in call.columns]
    return gates_with_key[0] if len(gates_with_key) == 1 and gates_with_key[0].enqueue_alone else None


def _enqueue_alone(store: "Store", cursor: Any, spec: JobSpec, call: EncodedCall, gate: KeyGate | None) -> EnqueuedJob:
    """Insert one job, commit, admit it if it waits at a gate, and notify the workers, in one round trip."""
    statement = unindented(gate.enqueue_alone if gate and gate.enqueue_alone else ENQUEUE_AND_NOTIFY)
    call_token, is_admitted = token_hex(8), False
    try:
        cursor.execute(statement, {**insert_values(spec), **call_values(call), "call": call_token})
        cursor.nextset()  # skip the result of BEGIN
        id, enqueued_at, *_ = cursor.fetchone()
        while gate and cursor.nextset():
            is_admitted = bool(cursor.rowcount)
    except BaseException as error:
        _end_transaction(store)
        rows = []  # the job that this call has inserted and committed, if the session can still tell
        if isinstance(error, Error):
            with suppress(Error):
                rows = store.rows(INSERTED, {"call": call_token})
        if not rows:
            raise
        [(id, enqueued_at)] = rows
        is_admitted = False
        store.send(NotifyFailed(store.alias, spec.queue_name, error))
    store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, [id]))
    if gate is None:
        return EnqueuedJob(spec, call, id, "queued", None, enqueued_at, enqueued_at)
    if is_admitted:
        store.send(JobsAdmitted(store.alias, {spec.queue_name: 1}))
        return EnqueuedJob(spec, call, id, "queued", None, enqueued_at, enqueued_at)
    admit_after_commit(store, _keys_of([call], None), is_urgent=spec.priority > 0)
    return EnqueuedJob(spec, call, id, "blocked", gate.name, enqueued_at, enqueued_at)


def _end_transaction(store: "Store") -> None:
    raw = store.connection.connection
    if raw is not None and raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            raw.rollback()


def enqueue_many(store: "Store", spec: JobSpec, calls: Sequence[EncodedCall]) -> DeferredJobs:
    """Insert a job for each call. This takes one statement if no call has a unique key.

    Returns the ids in the order of the calls, and the outcome of each call. If another job holds the unique key of a
    call, returns that job's id for the call. Raises the errors that `enqueue` raises, and `UniqueKeyTaken` if the
    spec's `on_conflict` is "raise".
    """
    spec, context = _in_context(store, spec)
    with context:
        if not (tracers and calls):
            return _enqueue_many(store, spec, calls).all_in(store.alias)
        with sending(spec, len(calls), store.alias) as traced_insert:
            traced_insert.job_ids = deferred = _enqueue_many(store, traced_insert.spec, calls).all_in(store.alias)
            return deferred


def _enqueue_many(store: "Store", spec: JobSpec, calls: Sequence[EncodedCall]) -> DeferredJobs:
    spec = _checked(spec)
    values = insert_values(spec)
    calls = with_queue_limits(spec.queue_name, calls)
    if any(call.unique_key is not None for call in calls):
        with explained_deadlock():
            return unique_keys().enqueue_unique(store, spec, values, calls, announce=_after_insert)
    if not calls:
        return DeferredJobs()
    [(inserted, queued, delay)] = store.rows(ENQUEUE_MANY, {**values, **calls_as_values(calls)})
    _after_insert(store, spec, inserted, calls, queued=queued, delay=delay)
    return DeferredJobs(sorted(inserted))


def _after_insert(
    store: "Store", spec: JobSpec, ids: list[int], calls: Sequence[EncodedCall], *, queued: int, delay: float
) -> list[Dependant]:
    """After an INSERT of jobs, notify workers and supervisors, and send the event.

    Notifies the workers if any job is queued, and the supervisors if the jobs are due soon. Jobs with keys of gates are
    admitted after the commit. If the spec names other jobs in `after`, makes the new jobs wait for them, and returns
    the new jobs that need not wait, because the other jobs are already finished.
    """
    hold_functions = [part.hold for part in installed_parts() if part.hold] if spec.after and ids else []
    not_waiting = [job for hold in hold_functions for job in hold(store, spec, ids)]
    queued += sum(job.status == "queued" for job in not_waiting)
    if delay <= 0 and (waiting := _keys_of(calls, ids[0] if len(ids) == 1 else None)):
        admit_after_commit(store, waiting, is_urgent=spec.priority > 0)
    if queued:
        wake(store, {spec.queue_name: queued})
    wake_supervisors(store, [delay])
    if ids:
        store.send(JobsDeferred(store.alias, spec.task, spec.queue_name, ids))
    return not_waiting


def _keys_of(calls: Sequence[EncodedCall], only_job_id: int | None) -> dict[str, dict[str, int | None]]:
    """Return the keys for which these calls wait, by gate, as in `Admission.keys`.

    only_job_id: the job's id if there is only one job.
    """
    waiting: dict[str, dict[str, int | None]] = {}
    for gate, column in KEY_COLUMNS.items():
        if keys := {call.columns[column] for call in calls if column in call.columns}:
            waiting[gate] = dict.fromkeys(keys, only_job_id)
            calls = [call for call in calls if column not in call.columns]  # a call waits at its first gate only
    return waiting


def new_job(
    store: "Store", insert: Callable[[JobSpec, EncodedCall], EnqueuedJob | None], spec: JobSpec, call: EncodedCall
) -> EnqueuedJob | None:
    """Insert a job by calling `insert`. Returns `None` if another job holds the unique key.

    If the other job's key has expired, frees the key, and inserts the job.
    """
    spec = spec._replace(on_conflict="skip")
    inserted = insert(spec, call)
    if inserted is None and call.unique_key is not None and unique_keys().free_unique_keys(store, [call.unique_key]):
        return insert(spec, call)
    return inserted


def _checked(spec: JobSpec) -> JobSpec:
    """Check the spec, and set the default of `max_attempts`. Raises `InvalidOption` for a value that is not valid."""
    check_columns(spec._asdict())
    if spec.after and spec.replaces:
        raise InvalidOption(
            "after and on_conflict='replace' do not go together: a job that waits already keeps what it waits for."
        )
    return spec if spec.max_attempts is not None else spec._replace(max_attempts=settings.max_attempts)


def _can_send_transaction_in_one_message(cursor: Any) -> bool:
    """Whether this cursor can send a whole transaction, of several statements, in one message.

    It cannot within a transaction that the caller has begun without Django, in pipeline mode, or if it binds parameters
    on the server, because only PostgreSQL's simple protocol allows several statements in one message.
    """
    psycopg_cursor = getattr(cursor, "cursor", None)
    if not isinstance(psycopg_cursor, psycopg.ClientCursor):
        return False
    session = psycopg_cursor.connection.pgconn
    return session.transaction_status == TransactionStatus.IDLE and session.pipeline_status == PipelineStatus.OFF
