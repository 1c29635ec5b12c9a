"""Concurrency limits, sequences and fair shares: how many jobs of a key run at once.

Invariant: a permit is the row of a job, not a stored number: before an admission, a statement counts the jobs of the
key that hold a permit. So nobody has to give a permit back, and a crash leaks none.
"""
