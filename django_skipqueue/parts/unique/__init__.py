"""Unique keys: of the jobs that share a key, only one waits or runs."""
