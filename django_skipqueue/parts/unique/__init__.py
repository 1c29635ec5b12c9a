"""Unique keys: of the jobs that share one, only one waits or runs."""
