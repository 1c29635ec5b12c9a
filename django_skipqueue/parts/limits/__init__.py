"""Concurrency limits, sequences and fair shares: how many jobs of a key run at once.

Invariant: a permit is a row, not a number that is kept: the jobs of a key that hold a permit are counted when another
is to be admitted. So nothing has to be given back, and a crash leaks nothing.
"""
