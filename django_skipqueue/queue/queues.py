"""Pause and resume queues, and move jobs from one queue to another.

A pause ends by itself at `paused_until`, by the database's clock, without a change of its row. Whether a queue is
paused is checked by the statements here, and by `CLAIM` and `QUEUES_WITH_JOBS`.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..events.events import QueuePaused, QueueResumed
from ..exceptions import InvalidOption
from ..values.bounds import check_columns
from ..values.part import Condition, installed_parts
from ..values.records import EncodedCall
from .fragments import CALL_KEYS, CONDITIONS, entering, joined, recording
from .notify import GATES_PAYLOAD, QUEUES_PAYLOAD, notify_supervisors, wake
from .parameters import noted

if TYPE_CHECKING:
    from .store import Store

# Sent by Queue.pause. Returns until when the queue is paused, by whom and why. If the queue is paused already, the new
# pause replaces the old pause. Index: the primary key.
PAUSE_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, paused_at, paused_until, paused_by, reason)
VALUES (
    %(name)s,
    statement_timestamp(),
    statement_timestamp() + make_interval(secs => %(seconds)s::float8),
    %(by)s,
    %(reason)s
)
ON CONFLICT (name) DO UPDATE SET
    paused_at = excluded.paused_at,
    paused_until = excluded.paused_until,
    paused_by = excluded.paused_by,
    reason = excluded.reason
RETURNING queue.paused_until, queue.paused_by, queue.reason
"""

# Sent by Queue.resume. Returns the queue's name if it was paused. Index: the primary key.
RESUME_QUEUE = """
UPDATE skipqueue_queue
SET paused_at = NULL, paused_until = NULL, paused_by = '', reason = ''
WHERE name = %(name)s AND paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
RETURNING name
"""

# Sent by supervisors, which do not wake workers for jobs of paused queues. Returns at most `limit` paused queues. The
# table has a row for each queue that was ever paused.
PAUSED_QUEUES = """
SELECT name
FROM skipqueue_queue
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
LIMIT %(limit)s
"""

_GATES = [condition for condition in CONDITIONS if condition.key]
"""The gates that admit jobs key by key, such as the gate of the limits. A queue may give such keys to its jobs."""


def _own_or_queue_value(name: str, type: str, *, key: str) -> str:
    """SQL for a column that belongs to this key: the job's own value, or else the value from its new queue.

    A key that begins with `queue:` comes from a queue.
    """
    return f"CASE WHEN NOT starts_with({key}, 'queue:') THEN {name} ELSE %({name})s::{type} END AS {name}"


def _keeps_permit(condition: Condition) -> str:
    """SQL for whether a job keeps its permit of this gate, because it has its own key, and has passed the gate."""
    or_at_later_gate = [f" OR gate = '{later.gate}'" for later in _GATES[_GATES.index(condition) + 1 :]]
    has_own_key = f"NOT starts_with({condition.key}, 'queue:')"
    return (
        f"COALESCE({has_own_key} AND (status = 'queued'{''.join(or_at_later_gate)}), false) AS keeps_{condition.gate}"
    )


def _chosen_columns(gate: Condition) -> list[str]:
    """SQL for the columns of the gate's key, and for whether the job keeps its permit."""
    types_by_column = {gate.key: "text", **CALL_KEYS[gate.key]}
    columns = [_own_or_queue_value(name, type, key=gate.key) for name, type in types_by_column.items()]
    return [*columns, _keeps_permit(gate)] if gate.grants_permits else columns


_CHOSEN_COLUMNS = "".join(f",\n        {column}" for gate in _GATES for column in _chosen_columns(gate))

# The keys before and after the change of the queue.
_KEYS_OF_JOB = "".join(f", job.{gate.key}" for gate in _GATES)
_KEYS_CHOSEN = "".join(f", chosen.{gate.key}" for gate in _GATES)

_SET_COLUMNS = "".join(f"\n    {name} = chosen.{name}," for gate in _GATES for name in (gate.key, *CALL_KEYS[gate.key]))


def _key_to_check(gate: Condition) -> str:
    """SQL for the key with which the gate decides whether the job must wait.

    The key is NULL if the job keeps its permit of the gate, so that it need not wait there.
    """
    if not gate.grants_permits:
        return f"chosen.{gate.key}"
    return f"(CASE WHEN NOT chosen.keeps_{gate.gate} THEN chosen.{gate.key} END)"


_KEYS_TO_CHECK = {gate.key: _key_to_check(gate) for gate in _GATES}

# The status and the gate of a job that passes the gates again.
_STATUS_AND_GATE = entering(column="job.{}", past="time", **_KEYS_TO_CHECK)

# Whether a key of the job has changed, so that the job passes the gates again.
_KEY_HAS_CHANGED = (
    f"job.status IN ('queued', 'blocked') AND (job.id{_KEYS_OF_JOB}) IS DISTINCT FROM (chosen.id{_KEYS_CHOSEN})"
)

# Sent by operators. Puts waiting jobs into another queue, and returns them. If a worker claims a job at the same
# moment, the worker keeps the job, because then the row is locked, or the job runs. For each gate, a job without its
# own key gets the key of its new queue. If a key changes, the job passes the gates again. If the job's key at a gate
# stays the same, the job keeps its permit of this gate. Index: the primary key.
CHANGE_QUEUE = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT
        id{chosen}
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND queue_name <> %(queue_name)s::text
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET queue_name = %(queue_name)s::text,
    status = CASE
        WHEN {key_has_changed} THEN {status}
        ELSE job.status
    END,
    gate = CASE
        WHEN {key_has_changed} THEN {gate}
        ELSE job.gate
    END,{columns}
    operations = {operations}
FROM chosen
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen)) AND job.id = chosen.id
RETURNING job.id, job.queue_name, job.status
""",
    chosen=_CHOSEN_COLUMNS,
    key_has_changed=_KEY_HAS_CHANGED,
    columns=_SET_COLUMNS,
    **_STATUS_AND_GATE,
    operations=recording("change_queue", further_keys={"from": "job.queue_name", "to": "%(queue_name)s::text"}),
)


def columns_of_queue(queue_name: str, calls: Sequence[EncodedCall]) -> dict[str, Any]:
    """The columns, such as the key of a limit, that `SKIPQUEUE["QUEUES"]` gives to these calls of one task."""
    columns: dict[str, Any] = {}
    for part in installed_parts():
        if part.of_queue:
            columns |= part.of_queue(queue_name, calls)
    return columns


DECLARED: set[str] = set()
"""The queues that tasks name in `@job`. The registry adds the queue of each task."""

LONGEST_QUEUE_PAUSE = timedelta(days=10 * 365)
"""The longest pause with an end. A longer pause is a mistake, or is meant to last until somebody resumes the queue."""


def pause_queue(store: "Store", name: str, *, for_: timedelta | None = None, by: str = "", reason: str = "") -> None:
    """Keep workers from claiming jobs of this queue, for a time or until the queue is resumed.

    Raises `InvalidOption` for a value that is not valid.
    """
    check_columns({"queue_name": name})
    if for_ is not None and not (isinstance(for_, timedelta) and timedelta(0) < for_ <= LONGEST_QUEUE_PAUSE):
        raise InvalidOption(
            f"for_ must be a timedelta of more than 0 and at most {LONGEST_QUEUE_PAUSE.days} days, or None until the "
            f"queue is resumed, not {for_!r}."
        )
    seconds = None if for_ is None else for_.total_seconds()
    values = {"name": name, "seconds": seconds, **noted(by, reason)}
    [(until, stored_by, stored_reason)] = store.rows(PAUSE_QUEUE, values)
    notify_supervisors(store, QUEUES_PAYLOAD)
    store.send(QueuePaused(store.alias, name, until, stored_by, stored_reason))


def resume_queue(store: "Store", name: str, *, by: str = "") -> bool:
    """Let workers claim jobs of this queue again. Returns whether it was paused."""
    check_columns({"queue_name": name})
    rows = store.rows(RESUME_QUEUE, {"name": name})
    if not rows:
        return False
    wake(store, [name])
    notify_supervisors(store, QUEUES_PAYLOAD)
    notify_supervisors(store, GATES_PAYLOAD)  # gates have not admitted its jobs during the pause
    store.send(QueueResumed(store.alias, name, noted(by, "")["by"]))
    return True


def paused_queues(store: "Store", *, limit: int | None = None) -> list[str]:
    return [name for (name,) in store.rows(PAUSED_QUEUES, {"limit": limit})]
