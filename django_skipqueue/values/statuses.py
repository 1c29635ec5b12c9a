"""The statuses of a job, in two groups. `models.status` labels them, and `queue.fragments` writes the groups as SQL."""

UNFINISHED_STATUSES = ("scheduled", "blocked", "queued", "running")

FINISHED_STATUSES = ("completed", "failed", "discarded")
"""A job with one of these statuses never changes again, unless somebody retries it."""
