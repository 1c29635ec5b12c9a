"""Which queues a worker serves. Pure."""

from collections.abc import Collection

DEMO_PREFIX = "skipqueue-demo-"
"""The names of the queues of `skipqueue demo` begin so."""


def serves(given: Collection[str], queue_name: str) -> bool:
    """Whether a worker serves this queue, if it was given these queues; if none, it serves every queue.

    The queues of the demo are an exception: only a worker that was given them serves them. No other knows their tasks.
    """
    return queue_name in given if given else not queue_name.startswith(DEMO_PREFIX)
