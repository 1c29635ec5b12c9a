"""Failing now: the failed attempts by their cause, and the page of one cause. Read from the roll-ups."""
