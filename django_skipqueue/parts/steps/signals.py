"""Send signals to jobs.

Each signal is a row of its own. Invariant: sending a signal locks no job. So the sender waits for no worker, and no
worker waits for the sender.
"""

from collections.abc import Collection
from typing import Any

from ...conf import settings
from ...exceptions import InvalidArguments, InvalidOption
from ...queue.parameters import as_array
from ...queue.store import Store
from ...values.bounds import check_key
from ...values.codec import encode, size_of
from .wake import wake_after_commit

# Sent by users, operators, in their transaction. Returns the ids of the jobs that have got the signal. A job gets no
# signal if it is finished, or has already got a signal of this name. Indexes: the primary keys.
SEND_SIGNAL = """
INSERT INTO skipqueue_signal (job_id, name, payload, sent_at, by, reason)
SELECT id, %(name)s, %(payload)s::text::jsonb, statement_timestamp(), %(by)s, %(reason)s
FROM skipqueue_job
WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND finished_at IS NULL
ORDER BY id
ON CONFLICT (job_id, name) DO NOTHING
RETURNING job_id
"""


def check_name(name: object) -> str:
    """Return the name of a step or a signal. Raises `InvalidOption` if the name cannot be used."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidOption(f"The name must be a str that is not empty, not {name!r}.")
    check_key("The name", name)
    return name


def as_stored_json(what: str, value: object) -> str:
    """Return a step's result or a signal's payload as JSON. Raises `InvalidArguments` if it cannot be stored."""
    text = encode(what, value)
    if (size := size_of(text)) > settings.max_result_bytes:
        raise InvalidArguments(
            f"{what} is {size:,} bytes long, and SKIPQUEUE['MAX_RESULT_BYTES'] is {settings.max_result_bytes:,}. "
            "Store what is large elsewhere, and give its key."
        )
    return text


def send_signal(
    store: Store, ids: Collection[int], name: str, payload: Any = None, *, by: str = "", reason: str = ""
) -> list[int]:
    """Send a signal to these jobs in the caller's transaction. Returns the ids of the jobs that have got it.

    Raises `InvalidOption` if the name cannot be used, and `InvalidArguments` if the payload cannot be stored.
    """
    values = {
        "ids": as_array(ids),
        "name": check_name(name),
        "payload": as_stored_json("The payload", payload),
        "by": by,
        "reason": reason,
    }
    sent = [id for (id,) in store.rows(SEND_SIGNAL, values)]
    if sent:
        wake_after_commit(store, sent)
    return sent
