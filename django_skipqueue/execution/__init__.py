"""Running attempts: the executor, threads, the event loop, interruption.

Writes nothing, except for the outcome of an `atomic` task.
"""
