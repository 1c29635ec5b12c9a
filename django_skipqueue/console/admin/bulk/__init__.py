"""Verbs that a worker applies to more jobs than one request can."""
