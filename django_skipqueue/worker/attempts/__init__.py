"""Runs attempts: in the runners of the pool, by the executor, with deadlines and interruption.

This package writes nothing to the database, except for the outcome of an `atomic` task.
"""
