"""Verbs that a worker applies to more jobs than one request can: the job that does it, and its progress."""
