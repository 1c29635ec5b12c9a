"""`tracebacks`: the project's own lines in sight, those of libraries folded."""

import traceback
from itertools import pairwise

import pytest

from django_skipqueue.console.admin.jobs.attempts import MESSAGE_LINES, parts_of

from .. import hostile, scene


def shape(text: str) -> list[tuple[str, int, bool]]:
    """Kind, frames and whether it is folded, of each part."""
    return [(part.kind, part.frames, part.is_folded) for part in parts_of(text)]


def test_frames_of_libraries_are_folded_but_for_those_that_raised() -> None:
    assert shape(scene.REFUSED) == [
        ("link", 0, False),
        ("library", 2, True),
        ("library", 1, False),
        ("raised", 0, False),
        ("link", 0, False),
        ("own", 2, False),
        ("library", 1, True),
        ("library", 1, False),
        ("raised", 0, False),
    ]


def test_our_own_frames_are_a_librarys() -> None:
    text = scene.REFUSED.replace(
        "/srv/shop/payments/jobs.py", "/srv/shop/src/django_skipqueue/worker/attempts/executor.py"
    )
    assert ("library", 1, True) in shape(text)


def test_a_long_message_is_folded_and_the_next_traceback_is_not() -> None:
    message = "\n".join(f"line {number}" for number in range(45))
    text = scene.REFUSED.replace("[Errno 111] Connection refused", message)
    parts = parts_of(text)
    long = [part for part in parts if "line 44" in part.text]
    assert [(part.kind, part.is_folded, len(part.lines)) for part in long] == [("raised", True, 45 - MESSAGE_LINES)]
    assert "direct cause" in parts[parts.index(long[0]) + 1].text


def raised(depth: int = 0) -> str:
    """A traceback as this Python writes it."""
    try:
        return str(int("x")) if depth > 4 else raised(depth + 1)
    except ValueError as error:
        try:
            raise RuntimeError('no\nnumber\n\n  File "x.py", line 1\n') from error
        except RuntimeError as chained:
            chained.add_note("a note")
            return traceback.format_exc()


def stack() -> str:
    """A stack as a stuck attempt keeps it: no heading, no exception."""
    return "".join(traceback.format_stack())


def group() -> str:
    """Exceptions in a group."""
    try:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    except ExceptionGroup:
        return traceback.format_exc()


@pytest.mark.parametrize("text", [raised(), stack(), group(), scene.REFUSED, "", "\n\n", *hostile.TEXTS.values()])
def test_the_parts_are_the_text(text: str) -> None:
    assert "\n".join(part.text for part in parts_of(text)) == text.rstrip("\n")


def test_the_end_of_a_stack_is_in_sight() -> None:
    last = parts_of(stack())[-1]
    assert "format_stack" in last.text
    assert not last.is_folded


def test_two_parts_beside_each_other_differ() -> None:
    for text in (raised(), scene.REFUSED):
        assert all((a.kind, a.is_folded) != (b.kind, b.is_folded) for a, b in pairwise(parts_of(text)))
