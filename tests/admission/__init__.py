"""Limits and order by key."""
