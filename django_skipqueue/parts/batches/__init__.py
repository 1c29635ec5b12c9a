"""Batches of jobs with callbacks, chains, and jobs that wait for other jobs."""
