"""The parts of the package. A new part needs one line here. `from_each_part` imports one file of each part."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAMES = (
    "unique",
    "keyed",
    "limits",
    "rates",
    "schedules",
    "steps",
    "batches",
    "databases",
    "history",
    "archive",
    "alerts",
)
"""The order is the order in which a job meets the gates of the parts, and in which a supervisor runs their services."""


def from_each_part(file: str, constant: str) -> tuple[Any, ...]:
    """Return a constant of each part that has this file, such as `COLUMNS` of each `columns.py`, in order."""
    modules = [f"{__package__}.{name}.{file}" for name in NAMES]
    return tuple(getattr(import_module(module), constant) for module in modules if find_spec(module))
