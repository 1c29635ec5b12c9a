"""The glossary: the words that it rules out are in no identifier of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_skipqueue

PACKAGE = Path(django_skipqueue.__file__).parent
GLOSSARY = PACKAGE.parent / "docs" / "reference" / "glossary.md"


def never_called() -> set[str]:
    """The words of the last column, as they would stand in an identifier; without those in italics."""
    rows = re.findall(r"^\| \*\*\w+\*\* \|.*\| ([^|]*?) ?\|$", GLOSSARY.read_text(), re.MULTILINE)
    found = {word.strip().replace(" ", "_") for row in rows for word in row.split(",") if word.strip()}
    return {word for word in found if not word.startswith("*")}


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a module gives to something, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def words(name: str) -> str:
    """An identifier as words with underscores around each: `_WorkerProcess` is `_worker_process_`."""
    return "_" + "_".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)).lower() + "_"


def test_the_glossary_rules_words_out() -> None:
    assert {"dequeue", "promote", "reap", "lock_token", "execution", "give_back"} <= never_called()
    assert not {"message", "*message*"} & never_called(), "exceptions have messages"


@pytest.mark.parametrize("name", ["promote", "_promoteDue", "PROMOTE", "due_promote_at"])
def test_a_word_is_found_in_an_identifier(name: str) -> None:
    assert "_promote_" in words(name)


def test_no_identifier_has_a_word_that_the_glossary_rules_out() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line in identifiers(path)
        for word in never_called()
        if f"_{word}_" in words(name)
    ]
    assert not found
