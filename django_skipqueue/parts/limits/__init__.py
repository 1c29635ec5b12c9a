"""Concurrency limits, sequences and fair shares: how many jobs with the same key run at once.

A permit is not a stored number: the row of a job shows whether the job holds a permit of its key. Before jobs are
admitted, a statement counts these rows. So no permit has to be given back, and a crash loses none.
"""
