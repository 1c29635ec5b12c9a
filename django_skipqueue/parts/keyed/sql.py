"""The pieces that the statements of limits and of rates share: paused queues, walks over keys, locks of keys."""

from textwrap import indent

from django.apps import apps

from ...conf import settings
from ...exceptions import InvalidOption
from ...queue.fragments import joined

# The queues that are paused. The table has a row for each queue that was paused or limited: it is read whole.
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
    """The piece with `by` more spaces before each of its further lines."""
    return indent(piece, by * " ").lstrip()


def walking(*, key: str, waits: str, apart: str = " ") -> str:
    """Return two CTEs, the second of which is `found`: at most `limit` keys with waiting jobs, after `after`.

    key: its column; `waits`: the condition of a job that waits; `apart`: the space before and after it.
    """
    return joined(_WALK, key=key, waits=waits, apart=apart)


# The locks of keys. `locks`: the class of the advisory locks. `wanted`: the keys, as a SELECT. `setting`: the setting
# with the keys that are locked.
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
    """Return a statement that locks keys. `more`: what else it returns of each, and sets."""
    return joined(_LOCK, locks=locks, setting=setting, wanted=wanted, more=more)


PREFIX = "queue:"
"""The beginning of the keys of queues. The statements that admit know them by it; no other key begins so."""


def key_of(queue_name: str) -> str:
    return PREFIX + queue_name


def queues_with(option: str) -> list[str]:
    """The queues to which `SKIPQUEUE["QUEUES"]` gives this option: their jobs have the key of their queue."""
    return [name for name, limits in settings.queues.items() if option in limits]


def require_changed(name: str, option: str, column: str) -> None:
    """Raise `InvalidOption` unless the queue's row has a value: jobs without a key of their queue would ignore it."""
    queue = apps.get_model("django_skipqueue", "Queue")  # which has the callers among its bases
    if not queue._default_manager.using(settings.database).filter(name=name).exclude(**{column: None}).exists():
        raise InvalidOption(
            f"The queue {name!r} has no {option} in the settings, so that none would hold for its jobs. Add "
            f'{name!r}: {{"{option}": None}} to SKIPQUEUE["QUEUES"], and restart the workers and all that enqueue.'
        )
