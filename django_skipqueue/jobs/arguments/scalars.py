"""The codecs of values that become one string or number: times, Decimal, UUID, enumerations."""

import datetime
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from types import NoneType
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from .codec import NUMBER, STRING, Codec, kind_of


class Scalar(Codec):
    """Values that a text describes: `write` makes it, `read` reads it, or raises `ValueError`."""

    def __init__(
        self,
        kind: type,
        write: Callable[[Any], str],
        read: Callable[[str], Any],
        *,
        advice: str,
        not_: type | None = None,
    ) -> None:
        """`not_`: a subclass whose values would lose something. `advice`: what to pass in place of another value."""
        self._kind = kind
        self._write = write
        self._read = read
        self._advice = advice
        self._not = not_

    def __str__(self) -> str:
        return self._kind.__name__

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._kind) and not (self._not is not None and isinstance(value, self._not))

    def encode(self, name: str, value: Any) -> Any:
        """See `Codec`. The text is read and written once more, because a subclass may write what it alone can read."""
        if not self.fits(value) and not isinstance(value, str):
            self.refuse(name, value, self._advice)
        try:
            text = self._write(value) if self.fits(value) else value
            again = self._write(self._read(text))
        except (ValueError, InvalidOperation):
            self.refuse(name, value, self._advice)
        if self.fits(value) and again != text:
            self.refuse(name, value, f"It would arrive as {again}.")
        return again

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            self.fail(name, value)
        try:
            return self._read(value)
        except (ValueError, InvalidOperation) as error:
            self.fail(name, value, str(error))


class Time(Scalar):
    """Times of day. A time zone without a date has no offset, so it would be lost."""

    def encode(self, name: str, value: Any) -> Any:
        if isinstance(value, datetime.time) and value.tzinfo is not None and value.utcoffset() is None:
            self.refuse(name, value, "The offset of its time zone depends on the date: pass a datetime.")
        return super().encode(name, value)


class Duration(Scalar):
    """Durations, as ISO 8601 writes them. A number counts as seconds: tasks took that before they were annotated."""

    also = frozenset((NUMBER,))

    def encode(self, name: str, value: Any) -> Any:
        if _is_number(value):
            try:
                value = datetime.timedelta(seconds=value)
            except (OverflowError, ValueError):
                self.refuse(name, value, "No timedelta is so long.")
        return super().encode(name, value)

    def decode(self, name: str, value: Any) -> Any:
        if not _is_number(value):
            return super().decode(name, value)
        try:
            return datetime.timedelta(seconds=value)
        except (OverflowError, ValueError) as error:
            self.fail(name, value, str(error))


class Number(Scalar):
    """Decimals, as strings. An integer counts as one."""

    also = frozenset((NUMBER,))

    def encode(self, name: str, value: Any) -> Any:
        return super().encode(name, Decimal(value) if _is_number(value) and isinstance(value, int) else value)

    def decode(self, name: str, value: Any) -> Any:
        """See `Codec`. A float in a row was stored before the task was annotated."""
        return super().decode(name, str(value) if _is_number(value) else value)


class Enumeration(Codec):
    """Members of one enumeration: by their values if these are strings, or if the members are integers.

    All others by their names, which are easier to read and do not change when members are added.
    """

    def __init__(self, kind: type[Enum]) -> None:
        self._enum = kind
        values = [member.value for member in kind.__members__.values()]
        is_number = issubclass(kind, int | Flag)
        self._by_value = is_number or all(isinstance(value, str) for value in values)
        self.kinds = frozenset((NUMBER if is_number else STRING,))

    def __str__(self) -> str:
        return self._enum.__qualname__

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._enum)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            try:
                value = self._read(value)
            except (ValueError, KeyError, TypeError):
                self.refuse(name, value, f"Pass one of {self._members()}.")
        return self._json(value)

    def decode(self, name: str, value: Any) -> Any:
        try:
            return self._read(value)
        except (ValueError, KeyError, TypeError):
            self.fail(name, value, f"it has {self._members()}")

    def _json(self, value: Enum) -> Any:
        if not self._by_value:
            return value.name
        return str.__str__(value.value) if isinstance(value.value, str) else int(value.value)

    def _read(self, value: Any) -> Enum:
        if isinstance(value, bool):
            raise ValueError(value)
        return self._enum(value) if self._by_value else self._enum[value]

    def _members(self) -> str:
        return ", ".join(repr(self._json(member)) for member in list(self._enum)[:20])


class MemberValue(Codec):
    """Texts and numbers. A member of an enumeration that is one, such as of `TextChoices`, counts as its value."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds

    def __str__(self) -> str:
        return " | ".join(kind.__name__ for kind in self._kinds)

    def fits(self, value: Any) -> bool:
        return isinstance(value, Enum) and isinstance(value, self._kinds)

    def encode(self, name: str, value: Any) -> Any:
        return value.value if self.fits(value) else value

    def decode(self, name: str, value: Any) -> Any:
        return value


class CheckedScalar(Codec):
    """Texts, numbers, bools and None, for the check of a call. They are JSON as they are. An int is a float as well.

    What is not JSON is left to the encoder, which says what to pass instead.
    """

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds

    def __str__(self) -> str:
        return " | ".join("None" if kind is NoneType else kind.__name__ for kind in self._kinds)

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._kinds) or (float in self._kinds and isinstance(value, int))

    def encode(self, name: str, value: Any) -> Any:
        if kind_of(value) and not self.fits(value):
            self.refuse(name, value)
        return value

    def decode(self, name: str, value: Any) -> Any:
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _duration(text: str) -> datetime.timedelta:
    found = parse_duration(text)
    if found is None:
        raise ValueError("it is no ISO 8601 duration such as P1DT02H00M00S")
    return found


SCALARS: dict[type, Codec] = {
    datetime.datetime: Scalar(
        datetime.datetime, lambda value: value.isoformat(), datetime.datetime.fromisoformat,
        advice="Pass a datetime, or its isoformat().",
    ),
    datetime.date: Scalar(
        datetime.date, lambda value: value.isoformat(), datetime.date.fromisoformat, not_=datetime.datetime,
        advice="Pass a date, or its isoformat(); of a datetime its .date().",
    ),
    datetime.time: Time(
        datetime.time, lambda value: value.isoformat(), datetime.time.fromisoformat,
        advice="Pass a time, or its isoformat().",
    ),
    datetime.timedelta: Duration(
        datetime.timedelta, duration_iso_string, _duration,
        advice="Pass a timedelta, a number of seconds, or an ISO 8601 duration such as 'P1DT02H00M00S'.",
    ),
    Decimal: Number(Decimal, str, Decimal, advice="Pass a Decimal, an int, or a str such as '9.99'."),
    UUID: Scalar(UUID, str, UUID, advice="Pass a UUID, or its str()."),
}  # fmt: skip
"""The codecs of the types that have one each."""
