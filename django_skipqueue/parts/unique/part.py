"""The part `unique` for the core: unique keys."""

from ...values.part import Part, console_of
from . import enqueue

PART = Part(
    name="unique",
    depends=("limits",),  # with on_conflict="rerun", the jobs of a key are a sequence
    unique_keys=enqueue,
    console=console_of(__package__),
)
