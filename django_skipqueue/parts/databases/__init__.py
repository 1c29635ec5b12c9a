"""Queues in several databases: choose the database of each job, and run a supervisor for each database."""
