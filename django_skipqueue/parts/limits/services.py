"""The services of limits: pass permits on, and have jobs wait again after a queue's limit was lowered."""

from ...queue.fragments import joined
from ...queue.gates import with_later
from ...queue.notify import LIMIT_PREFIX
from ...queue.store import Store
from ..keyed.pass_on import Held, contested, contesting, swapping
from ..keyed.services import KEYS_AT_ONCE, BlockSurplus, PassOn
from ..keyed.sql import indented, walking
from .queues import block_surplus
from .sql import LATER_KEY, LOCK_KEYS, PERMIT_GIVEN, RANK, WAITS_FOR_PERMIT

_PIECES = {
    "key": "limit_key",
    "waiting": WAITS_FOR_PERMIT,
    "found": walking(key="limit_key", waits=WAITS_FOR_PERMIT),
    "unclaimed": """(status = 'queued' OR gate = 'rate')
                AND NOT (limit_kind IN ('sequence', 'halting') AND (started_at IS NOT NULL OR attempts > 0))""",
    "rank": joined("{rank} AS rank, id", rank=indented(RANK, 16)),
    "order": "rank, id",
    "in_order": "limit_kind IN ('sequence', 'halting')",
    "locked": "skipqueue.locked_keys",
    "put_back": "status = 'blocked', gate = 'limit'",
    "admit": indented(PERMIT_GIVEN, 4),
    "admitted": "count(*) FILTER (WHERE status = 'queued'), array_agg(later_key) FILTER (WHERE status = 'blocked')",
    "later_key": LATER_KEY,
    "worst_first": "rank DESC, id DESC",
}

# supervisor → at most `limit` keys with waiting jobs, alphabetically after `after`. Of the next job whose queue is
# served, and of the jobs with a permit that no worker has claimed: whether the former has a higher priority than one of
# the latter, or comes before it in their sequence; those of the latter whose queues are not served, and the others,
# without sequences: of each the worst hundred. All NULL if there is no such job. Locks nothing.
# Index: limit_waiting and limit_held, once for each key.
CONTESTED_PERMITS = contesting(_PIECES)

# supervisor, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the rates that jobs with a permit
# wait for now; and in each row the ids of all jobs that were put back. The worst job that has a permit is compared with
# the best one that waits, the next with the next: the waiting one gets the permit if its priority is higher, or if it
# comes before the other in their sequence. With `ids`: these jobs are put back for waiting ones of other queues,
# whatever their priority. At most 100 jobs of a key.
# A locked row may have a version that this statement does not see, and that no `ctid` finds here: a job counts as put
# back once its row is written.
# Index: limit_held and limit_waiting, once for each key, and the primary key.
PASS_PERMITS_ON = swapping(_PIECES)

PERMITS = Held(LIMIT_PREFIX, CONTESTED_PERMITS, LOCK_KEYS, PASS_PERMITS_ON)


def pass_permits_on(store: Store) -> PassOn:
    return PassOn("pass_permits_on", store, PERMITS, lambda store, admitted: with_later(store, "limit", admitted))


def block_surplus_service(store: Store) -> BlockSurplus:
    return BlockSurplus("block_surplus", store, block_surplus)


def unclaimed_holders(store: Store) -> dict[str, int]:
    """The number of unclaimed jobs that hold a permit for which others wait, by key: of the first thousand keys."""
    found = contested(store, PERMITS, after="", limit=KEYS_AT_ONCE)
    return {each.key: len(each.held_up) + len(each.unserved) for each in found}
