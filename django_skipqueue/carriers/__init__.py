"""Carriers as operators see them: what each holds, and whether its relays and its broker are there."""
