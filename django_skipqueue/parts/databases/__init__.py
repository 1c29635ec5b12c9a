"""Several databases that hold queues: where a job goes, and who serves them."""
