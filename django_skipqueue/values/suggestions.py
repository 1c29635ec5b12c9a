"""What somebody meant who has mistyped a name. Pure."""

import difflib
from collections.abc import Sequence


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not in `known`."""
    return close_to(name, known) or f" It knows {', '.join(sorted(known))}."


def close_to(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not in `known`; empty if no known name is like it."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
