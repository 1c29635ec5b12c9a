"""The parts of the package: a new part is one line here. Each file of a part is imported when it is asked for."""

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
"""In the order in which a job meets their gates, and in which a supervisor runs their services."""


def given(file: str, constant: str) -> tuple[Any, ...]:
    """The constant of each part that has this file, in the order of the parts: `COLUMNS` of each `columns.py`."""
    modules = [f"{__package__}.{name}.{file}" for name in NAMES]
    return tuple(getattr(import_module(module), constant) for module in modules if find_spec(module))
