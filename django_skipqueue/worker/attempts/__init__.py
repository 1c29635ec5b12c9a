"""Run the attempts of jobs, in threads and in an event loop, with timeouts and interruption.

This package writes nothing to the database, except for the outcome of an `atomic` task.
"""
