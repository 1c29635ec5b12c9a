"""Moments of a process's monotonic clock, in seconds. Pure."""

import math

NEVER = math.inf
"""The moment of something that is not to happen, as matters stand."""
