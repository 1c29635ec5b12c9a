"""Whether the queue is well: which workers are alive, and the notices that stand over every page."""
