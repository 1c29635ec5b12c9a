"""The file `statements.sql` shows the statements as they are sent: a reviewer reads this SQL, not its pieces."""

import os
import re

import pytest

from django_skipqueue.queue.fragments import fill, joined
from django_skipqueue.values.part import PartColumns

from . import golden
from .statements import STATEMENTS


def test_every_statement_is_what_the_golden_file_shows() -> None:
    statements_of_code = golden.statements()
    if os.environ.get("SKIPQUEUE_WRITE_CONTRACT"):
        golden.FILE.write_text(golden.content_of_file(statements_of_code))
    content = golden.FILE.read_text()
    statements_of_file = golden.statements_in(content)
    differing_names = [
        name
        for name in statements_of_code | statements_of_file
        if statements_of_file.get(name) != statements_of_code.get(name, "").strip()
    ]
    if differing_names or content != golden.content_of_file(statements_of_code):
        difference = (
            "\n".join(differing_names) or "None in its text: the head of the file, or the order of the statements."
        )
        pytest.fail(f"statements.sql differs in:\n{difference}\nTo keep the change: make contract.", pytrace=False)


def test_no_statement_in_the_golden_file_has_an_unfilled_placeholder() -> None:
    texts = golden.statements()
    assert {name.partition(" ")[0] for name in texts} >= set(STATEMENTS)
    placeholders = {
        name: set(re.findall(r"{([a-z]\w*)}", text)) - golden.FILLED_BY_THE_CONSOLE for name, text in texts.items()
    }
    assert {name: unfilled for name, unfilled in placeholders.items() if unfilled} == {}


def test_joined_needs_exactly_the_pieces_for_the_placeholders_of_a_statement() -> None:
    statement = "SELECT {what}, '{}'::text[], '[0-9a-f]{12}', %(name)s"
    assert joined(statement, what="'{what}'") == "SELECT '{what}', '{}'::text[], '[0-9a-f]{12}', %(name)s"
    with pytest.raises(ValueError, match="what"):
        joined(statement)
    with pytest.raises(ValueError, match="other"):
        joined(statement, what="1", other="2")


def test_each_placeholder_is_filled_by_one_part_only() -> None:
    pieces = {"also": "", "order": "id"}
    first = PartColumns(pieces={"order": "unique_key"})
    fill(pieces, [first, PartColumns(pieces={"also": " OR true"})])
    assert pieces == {"also": " OR true", "order": "unique_key"}
    with pytest.raises(ValueError, match=r"another part fills them: \['order'\]"):
        fill({"also": "", "order": "id"}, [first, first])
    with pytest.raises(ValueError, match=r"No statement has these placeholders.*\['limit'\]"):
        fill({"also": ""}, [PartColumns(pieces={"limit": "1"})])
