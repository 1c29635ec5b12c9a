"""The statements are what `statements.sql` shows: whoever reviews a change reads SQL, not what SQL is made from."""

import os
import re

import pytest

from django_skipqueue.queue.fragments import fill, joined
from django_skipqueue.values.part import PartColumns

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
    places = {name: set(re.findall(r"{([a-z]\w*)}", text)) - golden.QUOTED for name, text in texts.items()}
    assert {name: found for name, found in places.items() if found} == {}


def test_a_statement_is_joined_from_exactly_the_pieces_for_which_it_has_places() -> None:
    statement = "SELECT {what}, '{}'::text[], '[0-9a-f]{12}', %(name)s"
    assert joined(statement, what="'{what}'") == "SELECT '{what}', '{}'::text[], '[0-9a-f]{12}', %(name)s"
    with pytest.raises(ValueError, match="what"):
        joined(statement)
    with pytest.raises(ValueError, match="other"):
        joined(statement, what="1", other="2")


def test_a_part_fills_only_places_that_there_are_and_each_place_once() -> None:
    pieces = {"also": "", "order": "id"}
    first = PartColumns(pieces={"order": "unique_key"})
    fill(pieces, [first, PartColumns(pieces={"also": " OR true"})])
    assert pieces == {"also": " OR true", "order": "unique_key"}
    with pytest.raises(ValueError, match=r"another part fills them: \['order'\]"):
        fill({"also": "", "order": "id"}, [first, first])
    with pytest.raises(ValueError, match=r"No statement has these places.*\['limit'\]"):
        fill({"also": ""}, [PartColumns(pieces={"limit": "1"})])
