"""SQL fragments for the statements of limits and rates: paused queues, walks over keys, locks of keys.

The module also makes the keys of whole queues.
"""

from textwrap import indent

from django.apps import apps

from ...conf import settings
from ...exceptions import InvalidOption
from ...queue.fragments import joined

# The paused queues. The table is read whole: it has one row for each queue that was ever paused or limited.
PAUSED = """paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
)"""

_WALK = """walk AS (
    (
        SELECT {key} AS key
        FROM skipqueue_job
        WHERE{apart}{waits}{apart}AND {key} > %(after)s::text
        ORDER BY {key}
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT {key}
        FROM skipqueue_job
        WHERE{apart}{waits}{apart}AND {key} > walk.key
        ORDER BY {key}
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s)"""


def indented(piece: str, by: int) -> str:
    """Indent each line of an SQL fragment, except the first, by `by` spaces."""
    return indent(piece, by * " ").lstrip()


def walking(*, key: str, waits: str, apart: str = " ") -> str:
    """Return two CTEs that walk an index. The second, `waiting_key`, has at most `limit` keys with waiting jobs.

    key: the column of the key; `waits`: the condition of a waiting job; `apart`: white space around the condition.
    """
    return joined(_WALK, key=key, waits=waits, apart=apart)


# Locks keys by advisory locks. `locks`: the class of the locks. `wanted`: a SELECT that returns the keys. `setting`:
# the PostgreSQL setting that stores the locked keys. `more`: SQL that sets more settings.
_LOCK = """
WITH wanted AS MATERIALIZED (
    {wanted}
),
lock AS MATERIALIZED (
    SELECT
        slot,
        CASE
            WHEN current_setting('transaction_isolation') = 'read committed'
            THEN pg_try_advisory_xact_lock({locks}, slot)
            ELSE false
        END AS is_ours
    FROM (SELECT DISTINCT hashtext(key) & 1023 AS slot FROM wanted) AS slots
)
SELECT
    array_agg(wanted.key) FILTER (WHERE NOT lock.is_ours) AS missed,
    set_config(
        '{setting}', COALESCE(array_agg(wanted.key) FILTER (WHERE lock.is_ours), '{}')::text, true
    ){more} AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023
"""


def locking(*, locks: str, setting: str, wanted: str, more: str = "") -> str:
    """Return a statement that locks keys. `_LOCK` explains the arguments."""
    return joined(_LOCK, locks=locks, setting=setting, wanted=wanted, more=more)


QUEUE_KEY_PREFIX = "queue:"
"""The key of a queue begins with this, and no other key does. The statements that admit jobs recognise it."""


def key_of(queue_name: str) -> str:
    return QUEUE_KEY_PREFIX + queue_name


def queues_with(option: str) -> list[str]:
    """Return the queues that have this option in `SKIPQUEUE["QUEUES"]`. Their jobs have the key of their queue."""
    return [name for name, limits in settings.queues.items() if option in limits]


def require_changed(name: str, option: str, column: str) -> None:
    """Raise `InvalidOption` if the queue's row has no value yet: its jobs have no key, and would ignore a new value."""
    queue = apps.get_model("django_skipqueue", "Queue")  # not an import: the callers are base classes of this model
    if not queue._default_manager.using(settings.database).filter(name=name).exclude(**{column: None}).exists():
        raise InvalidOption(
            f"The queue {name!r} has no {option} in the settings, so its jobs would ignore this change. Add "
            f'{name!r}: {{"{option}": None}} to SKIPQUEUE["QUEUES"], and restart the workers and all that enqueue.'
        )
