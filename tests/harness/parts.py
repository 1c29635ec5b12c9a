"""What the tests of parts add to the tests of the console."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]


def modules_of_parts(name: str) -> Iterator[ModuleType]:
    """The modules of this name that the folders of parts have."""
    for file in sorted(TESTS.glob(f"**/{name}.py")):
        yield import_module(".".join(["tests", *file.relative_to(TESTS).with_suffix("").parts]))
