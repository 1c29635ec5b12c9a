"""The database of a queue: a verb runs a statement of `sql` on one connection, and returns what it changed.

The only user of `sql`. Nothing here decides what becomes of a job; it writes what was decided elsewhere.
"""
