"""The supervisor's services for limits: pass permits on to better jobs, and block jobs after a limit was lowered."""

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

# Sent by the supervisor. Returns at most `limit` keys with waiting jobs, in alphabetical order after `after`, and three
# columns for each. They compare the key's holders (the unclaimed jobs that hold a permit) with the key's next waiting
# job whose queue has workers. `is_inverted`: whether the next job has a higher priority than a holder, or comes before
# a holder in their sequence. `unserved`: the worst hundred holders in queues without workers. `held_up`: the worst
# hundred other holders. Neither list contains jobs of a sequence. All three columns are NULL if there is no next job.
# Locks nothing. Index: limit_waiting and limit_held, once for each key.
CONTESTED_PERMITS = contesting(_LIMIT_PIECES)

# Sent by the supervisor, after LOCK_KEYS. For each queue, returns the number of admitted jobs, and the rate keys of the
# jobs that now have a permit and wait for their rate limit; in each row also the ids of all jobs that lost their
# permit. The statement compares the worst job that holds a permit with the best waiting job, the second worst with the
# second best, and so on. The waiting job gets the permit if its priority is higher, or if it comes first in their
# sequence. The jobs `ids` lose their permits to waiting jobs of other queues, whatever their priority. At most 100 jobs
# of a key lose their permit. Another transaction may have updated a row, so that its `ctid` finds nothing here. So a
# job counts as put back only once this statement has written its row. Index: limit_held and limit_waiting, once per
# key, and the primary key.
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
