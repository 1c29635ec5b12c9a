"""Concurrency limits, sequences and fair shares: how many jobs of a key run at once."""
