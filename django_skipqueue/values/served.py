"""Which queues a worker serves. Pure."""

from collections.abc import Collection


def serves(given: Collection[str], queue_name: str, *, carried: Collection[str]) -> bool:
    """Whether a worker serves this queue, if it was given these queues; if none, it serves every queue.

    Only a worker that was given a `carried` queue serves it: a carrier runs its jobs.
    """
    return queue_name in given if given else queue_name not in carried
