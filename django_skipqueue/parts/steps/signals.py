"""Send signals to jobs: `job.signal`, and `signal` of a query set.

A signal is a row of its own. Invariant: sending one locks no job, so it waits for no worker, and no worker for it.
"""

from collections.abc import Collection
from typing import Any

from asgiref.sync import sync_to_async

from ...exceptions import InvalidOption
from ...queue.parameters import as_array
from ...queue.store import Store
from ...values.bounds import check_key
from ...values.codec import encode
from .wake import wake_after_commit

# users, operators, in their transaction → the ids of the jobs that have got the signal. A job that is finished gets
# none, nor one that has already got a signal of this name. Indexes: the primary keys.
SEND_SIGNAL = """
INSERT INTO skipqueue_signal (job_id, name, payload, sent_at, by)
SELECT id, %(name)s, %(payload)s::text::jsonb, statement_timestamp(), %(by)s
FROM skipqueue_job
WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND finished_at IS NULL
ORDER BY id
ON CONFLICT (job_id, name) DO NOTHING
RETURNING job_id
"""


def check_name(name: object) -> str:
    """The name of a step or of a signal. Raises `InvalidOption` for one that cannot be used."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidOption(f"The name must be a str that is not empty, not {name!r}.")
    check_key("The name", name)
    return name


def send_signal(store: Store, ids: Collection[int], name: str, payload: Any = None, *, by: str = "") -> list[int]:
    """Send a signal to these jobs in the caller's transaction. Returns the ids of those that have got it.

    Raises `InvalidOption` for a name, and `InvalidArguments` for a payload that cannot be stored.
    """
    values = {"ids": as_array(ids), "name": check_name(name), "payload": encode("payload", payload), "by": by}
    sent = [id for (id,) in store.rows(SEND_SIGNAL, values)]
    if sent:
        wake_after_commit(store, sent)
    return sent


class SignalVerb:
    """Methods of `Job`."""

    def signal(self: Any, name: str, payload: Any = None, *, by: str = "") -> bool:
        """Send the payload, which must be JSON, to the `context.wait(name)` of the job's task. Part of the transaction.

        Returns False if the job is finished, or has already got a signal of this name. One that comes before the task
        waits is kept for it.
        """
        return bool(send_signal(self._store(), [self.pk], name, payload, by=by))

    async def asignal(self, name: str, payload: Any = None, *, by: str = "") -> bool:
        """`signal` for async code."""
        return await sync_to_async(self.signal)(name, payload, by=by)


class SignalVerbs:
    """Methods of the query sets of jobs."""

    def signal(self: Any, name: str, payload: Any = None, *, by: str = "") -> int:
        """Send the payload to each of these jobs, as `Job.signal` does. Returns how many have got it."""
        check_name(name)
        changed: int = self._in_batches(
            lambda ids: dict.fromkeys(send_signal(Store(self.db), ids, name, payload, by=by), "")
        )
        return changed

    async def asignal(self, name: str, payload: Any = None, *, by: str = "") -> int:
        """`signal` for async code."""
        return await sync_to_async(self.signal)(name, payload, by=by)

    _verb: Any
    for _verb in (signal, asignal):
        _verb.queryset_only = _verb.alters_data = True
    del _verb
