"""Unique keys, as the core sees them."""

from ...values.part import Part, console_of
from . import enqueue

PART = Part(
    name="unique",
    depends=("limits",),  # on_conflict="rerun" makes a sequence of the jobs of a key
    unique_keys=enqueue,
    console=console_of(__package__),
)
