"""Whether the queue is well: the notices that stand over every page."""
