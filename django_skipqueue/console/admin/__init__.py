"""The job queue in Django's admin: see jobs, archived jobs, queues and workers, and act on them."""
