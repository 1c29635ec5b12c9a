"""The services of limits: pass permits on, and have jobs wait again after a queue's limit was lowered."""

from ...queue.gates import with_later
from ...queue.store import Store
from ..keyed.pass_on import PERMITS, contested
from ..keyed.services import KEYS_AT_ONCE, BlockSurplus, PassOn
from .queues import block_surplus


def pass_permits_on(store: Store) -> PassOn:
    return PassOn("pass_permits_on", store, PERMITS, lambda store, admitted: with_later(store, "limit", admitted))


def block_surplus_service(store: Store) -> BlockSurplus:
    return BlockSurplus("block_surplus", store, block_surplus)


def unclaimed_holders(store: Store) -> dict[str, int]:
    """The number of unclaimed jobs that hold a permit for which others wait, by key: of the first thousand keys."""
    found = contested(store, PERMITS, after="", limit=KEYS_AT_ONCE)
    return {each.key: len(each.held_up) + len(each.unserved) for each in found}
