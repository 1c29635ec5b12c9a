"""Pass a permit or a token on: from a queued job that no worker has claimed, to a blocked job that should start first.

While a queued job waits for a worker, it keeps the permit of its concurrency limit, or the token of its rate limit. A
blocked job of the same key may need it more, because its priority is higher or because only its queue has a worker.
Then a supervisor blocks the queued job again, and admits the blocked job instead.

Under the lock of a key, a statement never admits more of the key's jobs than it puts back. So it neither raises the
number of held permits nor takes a token. Swaps come to an end, because each swap needs one of three reasons: the
admitted job has a higher priority than the job that is put back; only the admitted job's queue is served; or a worker
has a free slot for the admitted job. For a free slot, a job is put back at most once a minute.

A queue is served if it is not paused and a live worker claims its jobs. If a job of a sequence has begun, it is never
put back, and the jobs of a sequence are only admitted in order.

Supervisors run these statements. Limits and rates fill in the names in braces:

- `key`: the column of the key; `locked`: the setting with the keys that are locked
- `waiting`: the condition of a job that waits for a permit or a token
- `may_be_put_back`: the condition of a job that holds a permit or a token, and may be put back
- `in_order`: the condition of a job of a sequence, which keeps its order whether its queue is served or not
- `rank`: the columns by which the waiting jobs of a key are admitted; `order`: their names; `worst_first`: the reverse
- `put_back`, `admit`: the columns that are set in a job that is put back, or admitted
- `next_gate_key`: the key of the next gate, at which an admitted job may wait
- `admitted`: the columns returned for the admitted jobs: their number, and the keys of the next gate that they wait for
- `served`: a CTE, the queues that are served; `is_served`: the condition of a job in one of them
- `waiting_key`: CTEs, the keys with waiting jobs
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ...conf import settings
from ...queue.fragments import joined, placeholders
from ...queue.parameters import Admitted, Statement, as_array, fetched, pipelined
from ...queue.store import Store

# The queues that are served: all queues if `are_all`, otherwise the queues in `names`; in both cases without the queues
# in `paused`. With `idle`, only workers with a free slot count. A worker without slots (`concurrency` 0) hands its jobs
# on, and always counts. Index: recover, once per worker.
SERVED = """served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_external
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.concurrency = 0
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
)"""

IS_SERVED = """(
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                )"""


def _keyed(statement: str, pieces: Mapping[str, str]) -> str:
    all_pieces = {**pieces, "served": SERVED, "is_served": IS_SERVED}
    return joined(statement, **{name: all_pieces[name] for name in placeholders(statement)})


_CONTESTED = """
WITH RECURSIVE {served},
{waiting_key}
SELECT waiting_key.key, unclaimed.is_inverted, unclaimed.unserved, unclaimed.held_up
FROM
    served
    CROSS JOIN waiting_key
    LEFT JOIN LATERAL (
        SELECT {rank}
        FROM skipqueue_job
        WHERE {waiting} AND {key} = waiting_key.key AND ({in_order} OR {is_served})
        ORDER BY {order}
        LIMIT 1
    ) AS head ON true
    CROSS JOIN LATERAL (
        SELECT
            bool_or(head.rank < holder.rank OR (holder.is_in_order AND head.id < holder.id)) AS is_inverted,
            (array_agg(holder.id ORDER BY {worst_first}) FILTER (
                WHERE NOT (holder.is_in_order OR holder.is_served)
            ))[:100] AS unserved,
            (array_agg(holder.id ORDER BY {worst_first}) FILTER (
                WHERE holder.is_served AND NOT holder.is_in_order
            ))[:100] AS held_up
        FROM (
            SELECT {rank}, {in_order} AS is_in_order, {is_served} AS is_served
            FROM skipqueue_job
            WHERE {key} = waiting_key.key AND {may_be_put_back} AND head.id IS NOT NULL
        ) AS holder
    ) AS unclaimed
ORDER BY waiting_key.key
"""

_SWAP = """
WITH {served},
holder AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY {worst_first}) AS place
    FROM
        unnest((SELECT NULLIF(current_setting('{locked}', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT {rank}, {in_order} AS is_in_order, queue_name
            FROM skipqueue_job
            WHERE
                {key} = key.name
                AND {may_be_put_back}
                AND (%(ids)s::bigint[] IS NULL OR array_position(%(ids)s::bigint[], id) > 0)
            ORDER BY {worst_first}
            LIMIT 100
        ) AS job
),
waiting AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY {order}) AS place
    FROM
        (SELECT name, count(*) AS number, array_agg(DISTINCT queue_name) AS queues FROM holder GROUP BY name) AS key,
        served,
        LATERAL (
            SELECT {rank}
            FROM skipqueue_job
            WHERE
                {waiting}
                AND {key} = key.name
                AND ({in_order} OR {is_served})
                AND (%(ids)s::bigint[] IS NULL OR queue_name <> ALL (key.queues))
            ORDER BY {order}
            LIMIT key.number
        ) AS job
),
pair AS MATERIALIZED (
    SELECT name, place, holder.id AS holder_id, waiting.id AS waiting_id
    FROM holder JOIN waiting USING (name, place)
    WHERE
        %(ids)s::bigint[] IS NOT NULL
        OR waiting.rank < holder.rank
        OR (holder.is_in_order AND waiting.id < holder.id)
),
to_put_back AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (SELECT holder_id FROM pair))
        AND (status || '' = 'queued' OR gate || '' = 'rate')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
put_back AS (
    UPDATE skipqueue_job AS job
    SET {put_back}
    WHERE job.id = ANY (ARRAY (SELECT id FROM to_put_back))
    RETURNING job.id, job.{key} AS name
),
chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (
            SELECT pair.waiting_id
            FROM pair JOIN (SELECT name, count(*) AS number FROM put_back GROUP BY name) AS freed USING (name)
            WHERE pair.place <= freed.number
        ))
        AND {waiting}
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET {admit}
    WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
    RETURNING job.queue_name, job.status, {next_gate_key} AS next_gate_key
)
SELECT queue_name, {admitted}, (SELECT array_agg(id) FROM put_back) FROM admitted GROUP BY queue_name
"""


contesting = partial(_keyed, _CONTESTED)
"""Returns the statement that finds permits or tokens that may be passed on."""

swapping = partial(_keyed, _SWAP)
"""Returns the statement that passes permits or tokens on."""


@dataclass(frozen=True)
class Held:
    """The statements for permits or for tokens, which a job holds while it waits for a worker."""

    gate: str
    """The name of the gate. Notifications for this gate name keys for which a job that should start first may wait."""
    contested: str
    lock: str
    pass_on: str


class Contested(NamedTuple):
    """A key with waiting jobs, and the jobs that may lose its permits. Each list has at most a hundred ids."""

    key: str
    is_inverted: bool
    """Whether a waiting job has a higher priority than an unclaimed job, or comes first in their sequence."""
    unserved: Sequence[int]
    """The ids of unclaimed jobs in queues that are paused, or that no live worker serves."""
    held_up: Sequence[int]
    """The ids of all other unclaimed jobs: they hold a permit, but wait until a worker has a free slot."""


def contested(store: Store, held: Held, *, after: str, limit: int) -> list[Contested]:
    """Return at most `limit` keys with waiting jobs, in alphabetical order after `after`."""
    values = {"after": after, "limit": limit, **_served(idle=False)}
    return [
        Contested(key, bool(is_inverted), unserved or (), held_up or ())
        for key, is_inverted, unserved, held_up in store.rows(held.contested, values)
    ]


def pass_on(
    store: Store, held: Held, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False
) -> tuple[Admitted, set[int]]:
    """Block queued jobs again, and give their permits or tokens to blocked jobs with a higher priority.

    ids: take permits or tokens only from these jobs, and give them to jobs of any priority in other served queues.
    idle: count a queue as served only if one of its workers has a free slot.

    Returns which jobs were admitted, and the ids of the jobs that were put back. Notifies no worker.
    """
    lock: Statement = (held.lock, {"ids": [], "keys": sorted(keys)})
    swap: Statement = (held.pass_on, {"ids": None if ids is None else as_array(ids), **_served(idle=idle)})
    with store.connection.wrap_database_errors:
        _locked, swapped = pipelined(store.connection.connection, [lock, swap], None)
        rows = fetched(swapped)
    counts: dict[str, int] = {}
    later_keys: set[str] = set()
    put_back: set[int] = set()
    for queue_name, number, *key_lists, put_back_ids in rows:  # `key_lists`: one for limits, none for rates
        if number:
            counts[queue_name] = number
        for keys_of_next_gate in key_lists:
            later_keys.update(keys_of_next_gate or ())
        put_back.update(put_back_ids or ())
    return Admitted(counts, [], frozenset(later_keys)), put_back


def _served(*, idle: bool) -> dict[str, Any]:
    return {"idle": idle, "timeout": settings.worker_timeout, "external": sorted(settings.external_queues)}
