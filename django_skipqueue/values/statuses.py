"""The statuses of a job, in two groups. `models.status` has their labels, and `queue.fragments` the groups as SQL."""

UNFINISHED_STATUSES = ("scheduled", "blocked", "queued", "running")

FINISHED_STATUSES = ("completed", "failed", "discarded")
"""A job with one of these statuses never changes again, unless somebody retries it."""
