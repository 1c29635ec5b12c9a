"""The guards fit the tree as it is now. `make guards` shows that their tests go red without them."""

import ast
from functools import cache
from pathlib import Path

from .guard import ROOT, all_guards


def test_every_patch_can_be_applied() -> None:
    for guard in all_guards():
        guard.apply(ROOT, "--check")


def test_every_red_test_is_there() -> None:
    missing = {test for guard in all_guards() for test in guard.red if not is_test(test)}
    assert not missing


def test_there_are_enough() -> None:
    assert len(all_guards()) >= 60


def is_test(test: str) -> bool:
    """Whether the file of this id has such a function, in such a class if it names one."""
    path, *names = test.split("::")
    found = statements(path)
    for name in names:
        found = next((each.body for each in found if isinstance(each, NAMED) and each.name == name), [])
    return bool(names) and bool(found)


@cache
def statements(path: str) -> list[ast.stmt]:
    """Those of a file, which many guards may name."""
    return ast.parse(Path(ROOT, path).read_text()).body


NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
