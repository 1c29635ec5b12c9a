"""Unique keys, as the core sees them."""

from ...values.part import Part
from . import enqueue

PART = Part(name="unique", unique_keys=enqueue)
