"""The archive: finished jobs that were pruned from the job table."""
