"""Unique keys: of all jobs with the same key, only one waits or runs at a time."""
