"""`Codec`: how values of one type become JSON, and how they become values of that type again.

Invariant: what `encode` returns is decoded to a value that is encoded in the same way. So no value changes on its way;
one that would change is refused before anything is written.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from ...exceptions import InvalidArguments, UndecodableArguments

NULL, BOOL, NUMBER, STRING, LIST, OBJECT = "null", "bool", "number", "string", "list", "object"

EVERY_KIND = frozenset((NULL, BOOL, NUMBER, STRING, LIST, OBJECT))
"""The kinds of values that JSON has."""

SHOWN = 100
"""Characters of a value in an error."""


class Codec(ABC):
    """Converts the values of one type. In place of a codec, `None` stands for plain JSON."""

    kinds: frozenset[str] = frozenset((STRING,))
    """The kinds of JSON that it writes and reads."""

    also: frozenset[str] = frozenset()
    """Further kinds that it reads: jobs that were deferred before the task was annotated may have them."""

    fetches: ClassVar[bool] = False
    """Whether `decode` may send queries."""

    @property
    def uses_database(self) -> bool:
        """Whether this codec, or one within it, sends queries."""
        return self.fetches

    @abstractmethod
    def __str__(self) -> str:
        """The type, for an error."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether this is a value of the type, and not its JSON."""

    @abstractmethod
    def encode(self, name: str, value: Any) -> Any:
        """The JSON of a value of the type, or of its JSON. Raises `InvalidArguments`, with this name, for others."""

    @abstractmethod
    def decode(self, name: str, value: Any) -> Any:
        """The value of this JSON. Raises `UndecodableArguments` if it is none of the type."""

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """The values of many; `name` is that of the list."""
        return [self.decode(f"{name}[{position}]", value) for position, value in enumerate(values)]

    def refuse(self, name: str, value: Any, advice: str = "") -> NoReturn:
        """Raise `InvalidArguments` for a value that is none of the type."""
        raise InvalidArguments(f"{name} is {shown(value)}, but its annotation is {self}.{advice and f' {advice}'}")

    def fail(self, name: str, value: Any, why: str = "") -> NoReturn:
        """Raise `UndecodableArguments` for JSON that is none of the type."""
        reason = f": {why}" if why else ""
        raise UndecodableArguments(f"{name} was stored as {shown(value)}, and cannot be read as {self}{reason}.")


def encode_part(codec: Codec | None, name: str, value: Any) -> Any:
    """The JSON of a value within another one; without a codec, the value."""
    return value if codec is None else codec.encode(name, value)


def decode_part(codec: Codec | None, name: str, value: Any) -> Any:
    """The value of this JSON; without a codec, the JSON."""
    return value if codec is None else codec.decode(name, value)


def kind_of(value: Any) -> str:
    """The kind of a JSON value; empty for a value that is not JSON."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return STRING
    if isinstance(value, list | tuple):
        return LIST
    return OBJECT if isinstance(value, dict) else ""


def shown(value: Any) -> str:
    """A value in an error: its type and its text, cut. A value of which no text can be made has only its type."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # a value of the project, whose own code raises
        return f"of type {kind}"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return text if isinstance(value, str | int | float | None) else f"the {kind} {text}"
