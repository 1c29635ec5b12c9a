"""The pieces that the statements of limits and of rates share: paused queues, walks over keys, locks of keys.

Also the keys of whole queues.
"""

from textwrap import indent

from django.apps import apps

from ...conf import settings
from ...exceptions import InvalidOption
from ...queue.fragments import joined

# The paused queues. The table is read whole: it has a row for each queue that was paused or limited.
PAUSED = """paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
)"""

_WALK = """waiting AS (
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
        WHERE{apart}{waits}{apart}AND {key} > waiting.key
        ORDER BY {key}
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.key IS NOT NULL
),
found AS MATERIALIZED (SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s)"""


def indented(piece: str, by: int) -> str:
    """The piece with `by` more spaces before each of its lines but the first."""
    return indent(piece, by * " ").lstrip()


def walking(*, key: str, waits: str, apart: str = " ") -> str:
    """Return two CTEs, the second of which is `found`: at most `limit` keys with waiting jobs, after `after`.

    key: the column with the key; `waits`: the condition of a waiting job; `apart`: the space around the condition.
    """
    return joined(_WALK, key=key, waits=waits, apart=apart)


# Locks keys. `locks`: the class of the advisory locks. `wanted`: the keys, as a SELECT. `setting`: the setting that
# gets the locked keys. `more`: SQL that sets further settings.
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
"""The beginning of the key of a queue, by which the statements that admit know it. No other key begins with it."""


def key_of(queue_name: str) -> str:
    return QUEUE_KEY_PREFIX + queue_name


def queues_with(option: str) -> list[str]:
    """The queues to which `SKIPQUEUE["QUEUES"]` gives this option: their jobs have the key of their queue."""
    return [name for name, limits in settings.queues.items() if option in limits]


def require_changed(name: str, option: str, column: str) -> None:
    """Raise `InvalidOption` unless the queue's row has a value: jobs without a key of their queue would ignore it."""
    queue = apps.get_model("django_skipqueue", "Queue")  # not an import: the callers are base classes of this model
    if not queue._default_manager.using(settings.database).filter(name=name).exclude(**{column: None}).exists():
        raise InvalidOption(
            f"The queue {name!r} has no {option} in the settings, so that none would hold for its jobs. Add "
            f'{name!r}: {{"{option}": None}} to SKIPQUEUE["QUEUES"], and restart the workers and all that enqueue.'
        )
