"""Each patch of a guard can be applied to the current tree. `make guards` shows that tests fail without the guards."""

import ast
import re
from functools import cache
from pathlib import Path

from .guard import ROOT, all_guards


def test_every_patch_can_be_applied() -> None:
    for guard in all_guards():
        guard.apply_patch(ROOT, only_check=True)


def test_every_test_that_a_guard_names_exists() -> None:
    missing = {test for guard in all_guards() for test in guard.failing_tests if not exists(test)}
    assert not missing


def test_every_test_that_the_table_of_attacks_names_exists() -> None:
    page = (ROOT / "tests" / "ATTACKS.md").read_text()
    named_tests = set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", page))
    assert {test for test in named_tests if not (exists(test) if "::" in test else (ROOT / test).is_file())} == set()


def test_there_are_at_least_sixty_guards() -> None:
    assert len(all_guards()) >= 60


def exists(test: str) -> bool:
    """Whether the function with this id (`file::class::function` or `file::function`) exists."""
    path, *names = test.split("::")
    body = statements(path)
    for name in names:
        body = next(
            (definition.body for definition in body if isinstance(definition, DEFINITIONS) and definition.name == name),
            [],
        )
    return bool(names) and bool(body)


@cache
def statements(path: str) -> list[ast.stmt]:
    """The statements of a file. The cache serves guards that name the same file."""
    return ast.parse(Path(ROOT, path).read_text()).body


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
