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
        WHERE{white_space}{waits}{white_space}AND {key} > %(after)s::text
        ORDER BY {key}
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT {key}
        FROM skipqueue_job
        WHERE{white_space}{waits}{white_space}AND {key} > walk.key
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


def distinct_keys_scan(*, key: str, waits: str, white_space: str = " ") -> str:
    """Return two CTEs that walk an index. The second, `waiting_key`, has at most `limit` keys with waiting jobs.

    key: the column of the key; `waits`: the condition of a waiting job; `white_space`: the text around the condition.
    """
    return joined(_WALK, key=key, waits=waits, white_space=white_space)


# Tries to lock keys by advisory locks. `lock_namespace`: the first number of the locks, which sets them apart from all
# other advisory locks. `select_keys`: a SELECT that returns the keys. `locked_keys_setting`: the PostgreSQL setting
# that stores the locked keys. `further_settings`: SQL that stores more about the locked keys, in further settings.
_LOCK = """
WITH wanted AS MATERIALIZED (
    {select_keys}
),
lock AS MATERIALIZED (
    SELECT
        slot,
        CASE
            WHEN current_setting('transaction_isolation') = 'read committed'
            THEN pg_try_advisory_xact_lock({lock_namespace}, slot)
            ELSE false
        END AS is_ours
    FROM (SELECT DISTINCT hashtext(key) & 1023 AS slot FROM wanted) AS slots
)
SELECT
    array_agg(wanted.key) FILTER (WHERE NOT lock.is_ours) AS missed,
    set_config(
        '{locked_keys_setting}', COALESCE(array_agg(wanted.key) FILTER (WHERE lock.is_ours), '{}')::text, true
    ){further_settings} AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023
"""


def locking(*, lock_namespace: str, locked_keys_setting: str, select_keys: str, further_settings: str = "") -> str:
    """Return a statement that locks keys. `_LOCK` explains the arguments."""
    return joined(
        _LOCK,
        lock_namespace=lock_namespace,
        locked_keys_setting=locked_keys_setting,
        select_keys=select_keys,
        further_settings=further_settings,
    )


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
