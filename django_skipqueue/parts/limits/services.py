"""The supervisor's services for limits: pass permits on, and block jobs after a limit was lowered."""

from functools import partial

from ...queue.fragments import joined
from ...queue.gates import with_later
from ...queue.store import Store
from ..keyed.gate import KEYS_AT_ONCE
from ..keyed.pass_on import Held, contested, contesting, swapping
from ..keyed.services import BlockSurplus, PassOn
from ..keyed.sql import distinct_keys_scan, indented
from .columns import RANK
from .queues import block_surplus
from .sql import LATER_KEY, LOCK_KEYS, PERMIT_GIVEN, WAITS_FOR_PERMIT

# Fills the placeholders of the two statements in `keyed.pass_on`, which explains each name.
_LIMIT_PIECES = {
    "key": "limit_key",
    "waiting": WAITS_FOR_PERMIT,
    "waiting_key": distinct_keys_scan(key="limit_key", waits=WAITS_FOR_PERMIT),
    # A job that has its permit but waits for its rate may lose the permit too. A begun job of a sequence keeps it.
    "may_be_put_back": """(status = 'queued' OR gate = 'rate')
                AND NOT (limit_kind IN ('sequence', 'halting') AND (started_at IS NOT NULL OR attempts > 0))""",
    "rank": joined("{rank} AS rank, id", rank=indented(RANK, 16)),
    "order": "rank, id",
    "in_order": "limit_kind IN ('sequence', 'halting')",
    "locked": "skipqueue.locked_keys",
    "put_back": "status = 'blocked', gate = 'limit'",
    "admit": indented(PERMIT_GIVEN, 4),
    "admitted": "count(*) FILTER (WHERE status = 'queued'), array_agg(next_gate_key) FILTER (WHERE status = 'blocked')",
    "next_gate_key": LATER_KEY,
    "worst_first": "rank DESC, id DESC",
}

# Sent by the supervisor. Returns the next `limit` keys with waiting jobs, in alphabetical order after the key `after`.
# A holder is an unclaimed job that holds a permit of the key; the next job is the key's first waiting job in a queue
# that has workers. `is_inverted` says whether the next job has a higher priority than a holder, or comes before a
# holder in their sequence. `unserved` lists at most a hundred holders in queues without workers, and `held_up` at most
# a hundred of all other holders; both begin with the holders that would start last, and contain no jobs of a sequence.
# All three columns are NULL if there is no next job. Locks nothing. Index: limit_waiting and limit_held, once for each
# key.
CONTESTED_PERMITS = contesting(_LIMIT_PIECES)

# Sent by the supervisor, after LOCK_KEYS. For each queue, returns the number of admitted jobs, and the rate keys of the
# jobs that now have a permit and wait for their rate limit. Each row also has the ids of all jobs that were put back:
# they lost their permit, and are blocked again. Step 1: sort the unclaimed jobs that hold a permit from last to first,
# and the waiting jobs from first to last. Step 2: pair the jobs at the same place. In a pair, the waiting job gets the
# permit if its priority is higher, or if it comes first in their sequence. If `ids` are given, only these jobs lose
# their permits, and to waiting jobs of other queues with any priority. Step 3: put back these holders, at most 100 of
# each key. Step 4: admit one waiting job for each job that was really put back, because another transaction may have
# updated a holder in the meantime. Index: limit_held and limit_waiting, once per key, and the primary key.
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
    """Count the unclaimed jobs that hold a permit, for each of the first thousand keys with waiting jobs."""
    contests = contested(store, PERMITS, after="", limit=KEYS_AT_ONCE)
    return {contest.key: len(contest.held_up) + len(contest.unserved) for contest in contests}
