"""Runs attempts: the executor, threads, the event loop, interruption.

This package writes nothing to the database, except for the outcome of an `atomic` task.
"""
