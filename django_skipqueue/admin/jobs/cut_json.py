"""The beginning of a JSON text as a value.

Invariant: a name that was read whole keeps its value, so that a mask finds what it has to hide, even if the text ends
within it.
"""

import json
import re
from contextlib import suppress
from typing import Any

TOKEN = re.compile(r'"(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*"?|[][{},:]|[^][{},:"\s]+')
UNFINISHED_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
CLOSERS = {"{": "}", "[": "]"}
ENDINGS = ("", '"…"', ':"…"', '…"', '…":"…"')
"""The possible ends of a cut text before its closing brackets: none, a value, a name's value, the rest of a string or
name."""


def decoded(text: str) -> Any:
    """The value of a JSON text that may have been cut off, with `…` at the cut. `None` for a text that is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    tokens = TOKEN.findall(UNFINISHED_ESCAPE.sub(r"\1", text))
    brackets: list[str] = []
    for token in tokens:
        if token in CLOSERS:
            brackets.append(CLOSERS[token])
        elif token in ("}", "]") and brackets:
            brackets.pop()
    beginning, closed = _without_incomplete_end(tokens), "".join(reversed(brackets))
    for ending in ENDINGS:
        with suppress(ValueError, RecursionError):
            return json.loads(f"{beginning}{ending}{closed}")
    return None


def _without_incomplete_end(tokens: list[str]) -> str:
    """Remove a comma from the end, and a number, because some of its digits may be missing."""
    if tokens and tokens[-1] == ",":
        tokens = tokens[:-1]
    elif tokens and tokens[-1][0] not in '"[]{}:':
        tokens = [*tokens[:-1], '"…"']
    return "".join(tokens)
