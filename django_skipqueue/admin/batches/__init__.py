"""Batches in the admin."""
