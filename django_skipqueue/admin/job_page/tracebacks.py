"""A traceback in parts: the project's own lines are shown, those of libraries are folded.

Pure: splits Python's text into parts. Invariant: the lines of all parts, in order, are the lines of any text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ...values.tracebacks import LIBRARY

FRAME = re.compile(r'  File "(?P<file>.+?)", line \d+')
LINK = re.compile(r"Traceback \(most recent call last\):|The above exception was the |During handling of the above ")
"""The lines that Python writes above a traceback, and between two."""
MESSAGE_LINES = 3
"""The lines of a message that are shown; the rest is folded."""


@dataclass(frozen=True)
class Part:
    kind: str
    """`own` and `library`: frames; `raised`: an exception with its message; `link`: the line of Python between two."""
    lines: tuple[str, ...]
    frames: int = 0
    is_folded: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def parts_of(traceback: str) -> list[Part]:
    """The traceback in parts, in order; frames of libraries and the rest of long messages are folded."""
    lines = traceback.rstrip("\n").split("\n")
    if any("Exception Group Traceback" in line for line in lines):
        return [Part("raised", tuple(lines))]  # a tree, whose frames are marked in another way
    blocks = list(_blocks(lines))
    followers = [*blocks[1:], Part("raised", ())]  # a stack ends with a frame
    # A library's frame stays in sight where it is the one that raised.
    raises = [here.frames and not after.frames for here, after in zip(blocks, followers, strict=True)]
    parts: list[Part] = []
    for (kind, is_raising), group in groupby(
        zip(blocks, raises, strict=True), key=lambda each: (each[0].kind, bool(each[1]))
    ):
        members = [block for block, _ in group]
        together = tuple(line for block in members for line in block.lines)
        if kind == "raised":
            parts += _raised(together)
        else:
            parts.append(Part(kind, together, len(members), kind == "library" and not is_raising))
    return parts


def _blocks(lines: Iterable[str]) -> Iterator[Part]:
    """Frames, each with what is indented below it, and the texts between them."""
    block: list[str] = []
    file = ""
    for line in lines:
        frame = FRAME.match(line)
        goes_on = line.startswith(("    ", "  [Previous line")) if file else not frame
        if block and not goes_on:
            yield _block(block, file)
            block = []
        if not block:
            file = frame["file"] if frame else ""
        block.append(line)
    if block:
        yield _block(block, file)


def _block(lines: list[str], file: str) -> Part:
    kind = "raised" if not file else "library" if LIBRARY.search(file) else "own"
    return Part(kind, tuple(lines), 1 if file else 0)


def _raised(lines: tuple[str, ...]) -> Iterator[Part]:
    """An exception and its message, folded if it is long; then the line between this traceback and the next."""
    end = next((number for number, line in enumerate(lines) if LINK.match(line)), len(lines))
    while end and end < len(lines) and not lines[end - 1].strip():
        end -= 1
    first, rest = lines[:end][:MESSAGE_LINES], lines[:end][MESSAGE_LINES:]
    yield from (
        part
        for part in (Part("raised", first), Part("raised", rest, is_folded=True), Part("link", lines[end:]))
        if part.lines
    )
