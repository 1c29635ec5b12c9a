"""The page about reliability names all scenarios and invariants."""

import re
from pathlib import Path

from .invariants import INVARIANTS
from .report import COLUMNS

PAGE = (Path(__file__).parents[2] / "docs/explanation/reliability.md").read_text()


def test_the_page_has_every_scenario() -> None:
    # The source is read, because an import would register the tasks of the chaos suite in this process.
    source = (Path(__file__).parent / "scenarios.py").read_text()
    names = re.findall(r'^    "([a-z-]+)": Scenario\(', source, re.MULTILINE)
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == names
    described = re.findall("`([a-z-]+)`", PAGE.partition("## The faults")[2].partition("\n## ")[0])
    assert set(names) <= set(described)


def test_the_page_has_every_invariant() -> None:
    list_on_page = PAGE[PAGE.index("invariants\n\nEach is") :]
    assert len(re.findall(r"^\d+\. ", list_on_page, re.MULTILINE)) == len(INVARIANTS) == 24
    docstrings = [invariant.__doc__ or "" for invariant in INVARIANTS]
    assert [docstring[: docstring.index(")") + 1] for docstring in docstrings] == [f"({n})" for n in range(1, 25)]


def test_the_page_has_the_columns_of_the_table() -> None:
    assert f"| {' | '.join(COLUMNS)} |" in PAGE
