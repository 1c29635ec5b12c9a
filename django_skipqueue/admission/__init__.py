"""Limits and order by key: the options by which a task declares them, the keys of its jobs, and the statements.

Invariant: a permit is a row, not a number that is kept: the jobs of a key that hold a permit are counted when another
is to be admitted. So nothing has to be given back, and a crash leaks nothing.
"""
