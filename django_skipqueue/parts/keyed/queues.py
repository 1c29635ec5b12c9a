"""The keys of whole queues."""

PREFIX = "queue:"
"""The beginning of the keys of queues. The statements that admit know them by it; no other key begins so."""


def key_of(queue_name: str) -> str:
    return PREFIX + queue_name
