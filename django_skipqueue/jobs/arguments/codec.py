"""`Codec`: how values of one type become JSON, and how they become values of that type again.

Invariant: what `encode` returns is decoded to a value that is encoded in the same way. So no value changes on its way;
one that would change is refused before anything is written.

The codecs here are those of single values: of what becomes one string or number (times, Decimal, UUID, enumerations),
and of model instances: a reference is stored, and the row is fetched when the job runs.
"""

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from types import NoneType
from typing import Any, ClassVar, NoReturn
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import Model
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from ...exceptions import InvalidArguments, RowMissing, UndecodableArguments

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


REFERENCE_KEYS = {"model", "pk", "database"}


class Reference(Codec):
    """Instances of some models, as `{"model": "shop.order", "pk": 42, "database": "default"}`.

    Invariant: a task never gets an instance of another row, or of another database, than the caller passed.
    """

    kinds = frozenset((OBJECT,))
    fetches: ClassVar[bool] = True

    def __init__(self, models: tuple[type[Model], ...]) -> None:
        self._models = models

    def __str__(self) -> str:
        return " | ".join(model.__qualname__ for model in self._models)

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._models)

    def encode(self, name: str, value: Any) -> Any:
        """See `Codec`. An instance must be saved."""
        if isinstance(value, dict):
            if problem := self._problem(value):
                self.refuse(name, value, f"{problem[0].upper()}{problem[1:]}.")
            return value
        if not self.fits(value):
            self.refuse(name, value, f"Pass a saved {self}.")
        if value.pk is None or value._state.adding or value._state.db is None:
            self.refuse(name, value, "It is not saved: save it first, because the job fetches its row.")
        meta = value._meta
        if _is_composite(type(value)):
            self.refuse(name, value, "Its primary key has several columns: pass these.")
        pk = value.pk if isinstance(value.pk, int | str) else meta.pk.value_to_string(value)
        return {"model": meta.label_lower, "pk": pk, "database": value._state.db}

    def decode(self, name: str, value: Any) -> Any:
        """See `Codec`. Fetches the row; raises `RowMissing` if it is gone."""
        return self._fetched([(name, value)])[0]

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """See `Codec`. Sends one query for each model and database."""
        return self._fetched([(f"{name}[{position}]", value) for position, value in enumerate(values)])

    def _fetched(self, references: Sequence[tuple[str, Any]]) -> list[Any]:
        wanted: dict[tuple[str, str], set[Any]] = {}
        keys = []
        for name, value in references:
            if problem := self._problem(value):
                self.fail(name, value, problem)
            place = value["model"], value["database"]
            pk = self._pk(name, value)
            wanted.setdefault(place, set()).add(pk)
            keys.append((place, pk))
        found = {
            (label, alias): apps.get_model(label)._base_manager.using(alias).in_bulk(pks)
            for (label, alias), pks in wanted.items()
        }
        for (name, value), (place, pk) in zip(references, keys, strict=True):
            if pk not in found[place]:
                label = apps.get_model(value["model"])._meta.label
                raise RowMissing(f"{name} is {label} {value['pk']!r}, which the database {place[1]!r} no longer has.")
        return [found[place][pk] for place, pk in keys]

    def _problem(self, value: Any) -> str:
        """Why this is no reference to one of the models; empty if it is."""
        if not isinstance(value, Mapping) or value.keys() != REFERENCE_KEYS:
            return f"a reference to a row has the keys {', '.join(sorted(REFERENCE_KEYS))}"
        label, alias = value["model"], value["database"]
        try:
            model = apps.get_model(label)
        except (LookupError, ValueError, AttributeError, TypeError):
            return f"there is no model {label!r}"
        if not issubclass(model, self._models):
            return f"{label} is another model"
        if not isinstance(alias, str) or alias not in connections:
            return f"there is no database {alias!r}"
        return "" if isinstance(value["pk"], int | str) else f"{value['pk']!r} is no primary key"

    def _pk(self, name: str, value: Mapping[str, Any]) -> Any:
        try:
            return apps.get_model(value["model"])._meta.pk.to_python(value["pk"])
        except ValidationError as error:
            self.fail(name, value, "; ".join(error.messages))


def _is_composite(model: type[Model]) -> bool:
    return len(getattr(model._meta, "pk_fields", ())) > 1
