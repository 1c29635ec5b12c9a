"""Finds modules by which the tests of parts (optional features of the package) add to the tests of the console."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]


def modules_of_parts(name: str) -> Iterator[ModuleType]:
    """Yield the modules of this name in all folders of the tests."""
    for file in sorted(TESTS.glob(f"**/{name}.py")):
        yield import_module(".".join(["tests", *file.relative_to(TESTS).with_suffix("").parts]))
