"""The statements are what `statements.sql` shows: whoever reviews a change reads SQL, not what SQL is made from."""

import os
import re

import pytest

from . import golden
from .statements import STATEMENTS


def test_every_statement_is_what_the_golden_file_shows() -> None:
    now = golden.statements()
    if os.environ.get("SKIPQUEUE_WRITE_CONTRACT"):
        golden.FILE.write_text(golden.written(now))
    content = golden.FILE.read_text()
    shown = golden.read(content)
    differ = [name for name in now | shown if shown.get(name) != now.get(name, "").strip()]
    if differ or content != golden.written(now):
        what = "\n".join(differ) or "None in its text: the head of the file, or the order of the statements."
        pytest.fail(f"statements.sql differs in:\n{what}\nTo keep the change: make contract.", pytrace=False)


def test_the_golden_file_has_every_statement_and_no_place_without_its_piece() -> None:
    texts = golden.statements()
    assert {name.partition(" ")[0] for name in texts} >= set(STATEMENTS)
    places = {name: set(re.findall(r"{([a-z]\w*)}", text)) - {"schema", "index"} for name, text in texts.items()}
    assert {name: found for name, found in places.items() if found} == {}
