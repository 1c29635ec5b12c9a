"""Queues in the admin."""
