"""Which queues a worker serves. Pure."""

from collections.abc import Collection

DEMO_PREFIX = "skipqueue-demo-"
"""The names of the queues of `skipqueue demo` begin so."""


def serves(given: Collection[str], queue_name: str, *, carried: Collection[str]) -> bool:
    """Whether a worker serves this queue, if it was given these queues; if none, it serves every queue.

    Two kinds of queues are exceptions, and only a worker that was given them serves them. Those of the demo: no other
    worker knows their tasks. The `carried` ones: a carrier runs their jobs.
    """
    return queue_name in given if given else not (queue_name.startswith(DEMO_PREFIX) or queue_name in carried)
