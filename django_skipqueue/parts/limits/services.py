"""The services of limits: pass permits on, and have jobs wait again after a queue's limit was lowered."""

from functools import partial

from ...queue.fragments import joined
from ...queue.gates import with_later
from ...queue.store import Store
from ..keyed.gate import KEYS_AT_ONCE
from ..keyed.pass_on import Held, contested, contesting, swapping
from ..keyed.services import BlockSurplus, PassOn
from ..keyed.sql import indented, walking
from .columns import RANK
from .queues import block_surplus
from .sql import LATER_KEY, LOCK_KEYS, PERMIT_GIVEN, WAITS_FOR_PERMIT

_LIMIT_PIECES = {
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

# supervisor → at most `limit` keys with waiting jobs, alphabetically after `after`; for each key three columns. They
# compare the jobs that hold a permit and are not claimed with the next job whose queue is served. `is_inverted`:
# whether the next job has a higher priority than one of the holders, or comes before it in their sequence. `unserved`:
# the worst hundred holders in queues that are not served. `held_up`: the worst hundred other holders. No job of a
# sequence is in either list. All three are NULL if there is no next job. Locks nothing.
# Index: limit_waiting and limit_held, once for each key.
CONTESTED_PERMITS = contesting(_LIMIT_PIECES)

# supervisor, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the rates that jobs with a permit
# wait for now; and in each row the ids of all jobs that were put back. The worst job that has a permit is compared with
# the best job that waits, the second worst with the second best, and so on. The waiting job gets the permit if its
# priority is higher, or if it comes first in their sequence. With `ids`, these jobs are put back for waiting jobs of
# other queues, whatever their priority. At most 100 jobs of a key are put back.
# A locked row may have a version that this statement does not see, and that no `ctid` finds here. So a job counts as
# put back only once its row is written.
# Index: limit_held and limit_waiting, once for each key, and the primary key.
PASS_PERMITS_ON = swapping(_LIMIT_PIECES)

PERMITS = Held("limit", CONTESTED_PERMITS, LOCK_KEYS, PASS_PERMITS_ON)

pass_permits_on = partial(
    PassOn,
    name="pass_permits_on",
    held=PERMITS,
    admit=lambda store, admitted: with_later(store, "limit", admitted),
)

block_surplus_service = partial(BlockSurplus, name="block_surplus", block=block_surplus)


def unclaimed_holders(store: Store) -> dict[str, int]:
    """For each of the first thousand keys with waiting jobs: how many unclaimed jobs hold a permit of the key."""
    found = contested(store, PERMITS, after="", limit=KEYS_AT_ONCE)
    return {each.key: len(each.held_up) + len(each.unserved) for each in found}
