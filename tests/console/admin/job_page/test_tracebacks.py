"""In a traceback, the page of a job shows the lines of the project and folds the lines of libraries."""

import traceback
from itertools import pairwise

import pytest

from django_skipqueue.console.admin.jobs.attempts import MESSAGE_LINES, parts_of

from .. import hostile, scene


def parts_summary(text: str) -> list[tuple[str, int, bool]]:
    """Return the kind of each part of a traceback, its number of frames, and whether it is folded."""
    return [(part.kind, part.frames, part.is_folded) for part in parts_of(text)]


def test_frames_of_libraries_are_folded_except_the_frame_that_raised() -> None:
    assert parts_summary(scene.REFUSED_TRACEBACK) == [
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


def test_frames_of_the_package_count_as_library_frames() -> None:
    text = scene.REFUSED_TRACEBACK.replace(
        "/srv/shop/payments/jobs.py", "/srv/shop/src/django_skipqueue/worker/attempts/executor.py"
    )
    assert ("library", 1, True) in parts_summary(text)


def test_a_long_message_is_folded_and_the_next_traceback_is_not() -> None:
    message = "\n".join(f"line {number}" for number in range(45))
    text = scene.REFUSED_TRACEBACK.replace("[Errno 111] Connection refused", message)
    parts = parts_of(text)
    parts_with_last_line = [part for part in parts if "line 44" in part.text]
    assert [(part.kind, part.is_folded, len(part.lines)) for part in parts_with_last_line] == [
        ("raised", True, 45 - MESSAGE_LINES)
    ]
    assert "direct cause" in parts[parts.index(parts_with_last_line[0]) + 1].text


def make_traceback(depth: int = 0) -> str:
    """Return a traceback that this version of Python has written."""
    try:
        return str(int("x")) if depth > 4 else make_traceback(depth + 1)
    except ValueError as error:
        try:
            raise RuntimeError('no\nnumber\n\n  File "x.py", line 1\n') from error
        except RuntimeError as chained:
            chained.add_note("a note")
            return traceback.format_exc()


def make_stack() -> str:
    """Return a stack without a heading and an exception, such as the stack of a stuck attempt."""
    return "".join(traceback.format_stack())


def make_group_traceback() -> str:
    """Return the traceback of an exception group."""
    try:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    except ExceptionGroup:
        return traceback.format_exc()


@pytest.mark.parametrize(
    "text",
    [
        make_traceback(),
        make_stack(),
        make_group_traceback(),
        scene.REFUSED_TRACEBACK,
        "",
        "\n\n",
        *hostile.TEXTS.values(),
    ],
)
def test_the_parts_joined_are_the_whole_traceback(text: str) -> None:
    assert "\n".join(part.text for part in parts_of(text)) == text.rstrip("\n")


def test_the_last_frame_of_a_stack_is_not_folded() -> None:
    last = parts_of(make_stack())[-1]
    assert "format_stack" in last.text
    assert not last.is_folded


def test_neighbouring_parts_differ_in_kind_or_folding() -> None:
    for text in (make_traceback(), scene.REFUSED_TRACEBACK):
        assert all(
            (part.kind, part.is_folded) != (next_part.kind, next_part.is_folded)
            for part, next_part in pairwise(parts_of(text))
        )
