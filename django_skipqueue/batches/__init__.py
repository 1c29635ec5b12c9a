"""Batches of jobs with callbacks, chains, and tasks with arguments."""
