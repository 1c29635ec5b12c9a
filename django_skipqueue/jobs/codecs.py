"""Codecs for arguments and results of types that JSON does not have. A codec converts values to JSON, and back.

A codec refuses a value that would not be decoded to an equal value.

The file has three sections: codecs of single values, which become one string or number; the codec of model instances,
which become a reference to their row; and codecs of values that contain other values. The module `annotations` chooses
a codec for each annotation of a task.
"""

import copy
import dataclasses
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

from ..exceptions import InvalidArguments, RowMissing, UndecodableArguments

NULL, BOOL, NUMBER, STRING, LIST, OBJECT = "null", "bool", "number", "string", "list", "object"

EVERY_KIND = frozenset((NULL, BOOL, NUMBER, STRING, LIST, OBJECT))
"""The kinds of values that JSON has."""

LONGEST_SHOWN_VALUE = 100
"""The most characters of a value that an error message shows."""


class Codec(ABC):
    """Converts the values of one type. Where a codec is expected, `None` means that values are plain JSON."""

    kinds: frozenset[str] = frozenset((STRING,))
    """The kinds of JSON that the codec writes and reads."""

    also_reads: frozenset[str] = frozenset()
    """Further kinds of JSON that the codec reads, because jobs from before the task was annotated may contain them."""

    fetches: ClassVar[bool] = False
    """Whether `decode` itself may send database queries."""

    inner: Sequence["Codec | None"] = ()
    """The codecs of the values that this codec's values contain."""

    @property
    def uses_database(self) -> bool:
        """Whether this codec, or an inner codec, may send database queries."""
        return self.fetches or any(codec is not None and codec.uses_database for codec in self.inner)

    @abstractmethod
    def __str__(self) -> str:
        """The name of the type, for error messages."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether `value` has this type. False for the JSON in which such a value is stored."""

    @abstractmethod
    def encode(self, name: str, value: Any) -> Any:
        """Convert a value to JSON. It may already be JSON. Raises `InvalidArguments`, which mentions `name`."""

    @abstractmethod
    def decode(self, name: str, value: Any) -> Any:
        """Convert JSON back to a value of the type. Raises `UndecodableArguments` for the JSON of another type."""

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Convert each item of a JSON list back. `name`: the name of the list, for error messages."""
        return [self.decode(f"{name}[{position}]", value) for position, value in enumerate(values)]

    def refuse(self, name: str, value: Any, advice: str = "") -> NoReturn:
        """Raise `InvalidArguments` for a value of another type."""
        raise InvalidArguments(f"{name} is {shown(value)}, but its annotation is {self}.{advice and f' {advice}'}")

    def fail(self, name: str, value: Any, why: str = "") -> NoReturn:
        """Raise `UndecodableArguments` for the JSON of another type."""
        reason = f": {why}" if why else ""
        raise UndecodableArguments(f"{name} was stored as {shown(value)}, and cannot be read as {self}{reason}.")


def encode_part(codec: Codec | None, name: str, value: Any) -> Any:
    """Convert an inner value, such as an item of a list, to JSON. Without a codec, return it unchanged."""
    return value if codec is None else codec.encode(name, value)


def decode_part(codec: Codec | None, name: str, value: Any) -> Any:
    """Convert the JSON of an inner value back. Without a codec, return it unchanged."""
    return value if codec is None else codec.decode(name, value)


def kind_of(value: Any) -> str:
    """The kind of a JSON value, such as `number`; empty for a value that is not JSON."""
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
    """Describe a value in an error message: its shortened `repr` and its type, or only its type if `repr` raises."""
    type_name = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # `__repr__` of a class of the project may raise
        return f"of type {type_name}"
    text = text if len(text) <= LONGEST_SHOWN_VALUE else f"{text[: LONGEST_SHOWN_VALUE - 1]}…"
    return text if isinstance(value, str | int | float | None) else f"the {type_name} {text}"


class Scalar(Codec):
    """Values that become a string. `write` makes the string. `read` reads it, or raises `ValueError`."""

    def __init__(
        self,
        value_type: type,
        write: Callable[[Any], str],
        read: Callable[[str], Any],
        *,
        advice: str,
        excluded: type | None = None,
    ) -> None:
        """`excluded`: a subclass whose values do not count as this type. `advice`: the end of error messages."""
        self._kind = value_type
        self._write = write
        self._read = read
        self._advice = advice
        self._excluded = excluded

    def __str__(self) -> str:
        return self._kind.__name__

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._kind) and (self._excluded is None or not isinstance(value, self._excluded))

    def encode(self, name: str, value: Any) -> Any:
        """See `Codec`. Reads the string back as a check, because only a subclass may be able to read what it writes."""
        if not self.fits(value) and not isinstance(value, str):
            self.refuse(name, value, self._advice)
        try:
            text = self._write(value) if self.fits(value) else value
            round_trip = self._write(self._read(text))
        except (ValueError, InvalidOperation):
            self.refuse(name, value, self._advice)
        if self.fits(value) and round_trip != text:
            self.refuse(name, value, f"It would arrive as {round_trip}.")
        return round_trip

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            self.fail(name, value)
        try:
            return self._read(value)
        except (ValueError, InvalidOperation) as error:
            self.fail(name, value, str(error))


class Time(Scalar):
    """Times of day. Refuses a time zone whose offset depends on the date, because the time zone would be lost."""

    def encode(self, name: str, value: Any) -> Any:
        if isinstance(value, datetime.time) and value.tzinfo is not None and value.utcoffset() is None:
            self.refuse(name, value, "The offset of its time zone depends on the date: pass a datetime.")
        return super().encode(name, value)


class Duration(Scalar):
    """Durations in ISO 8601 form. A number counts as seconds, which a task without annotations may have stored."""

    also_reads = frozenset((NUMBER,))

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
    """Decimals, which become strings. An integer counts as a Decimal."""

    also_reads = frozenset((NUMBER,))

    def encode(self, name: str, value: Any) -> Any:
        return super().encode(name, Decimal(value) if _is_number(value) and isinstance(value, int) else value)

    def decode(self, name: str, value: Any) -> Any:
        """See `Codec`. Also reads a float, which was stored before the task was annotated."""
        return super().decode(name, str(value) if _is_number(value) else value)


class Enumeration(Codec):
    """Members of one enumeration. They are stored by value if the values are strings or integers, else by name.

    Other values are harder to read than names, and may change when members are added.
    """

    def __init__(self, enum_class: type[Enum]) -> None:
        self._enum = enum_class
        values = [member.value for member in enum_class.__members__.values()]
        is_number = issubclass(enum_class, int | Flag)
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


class PlainTypes(Codec):
    """Values that are already JSON. Subclasses check or convert the values before they are encoded."""

    def __init__(self, allowed_types: tuple[type, ...]) -> None:
        self._allowed_types = allowed_types

    def __str__(self) -> str:
        return " | ".join("None" if member is NoneType else member.__name__ for member in self._allowed_types)

    def decode(self, name: str, value: Any) -> Any:
        return value


class MemberValue(PlainTypes):
    """Strings and numbers. A member of an enumeration such as `TextChoices` is replaced by its value."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, Enum) and isinstance(value, self._allowed_types)

    def encode(self, name: str, value: Any) -> Any:
        return value.value if self.fits(value) else value


class CheckedScalar(PlainTypes):
    """Checks strings, numbers, bools and None against an annotation. An int also counts as a float.

    A value that is not JSON passes this check, because the encoder refuses it later, and says what to pass instead.
    """

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._allowed_types) or (float in self._allowed_types and isinstance(value, int))

    def encode(self, name: str, value: Any) -> Any:
        if kind_of(value) and not self.fits(value):
            self.refuse(name, value)
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _duration(text: str) -> datetime.timedelta:
    duration = parse_duration(text)
    if duration is None:
        raise ValueError("it is no ISO 8601 duration such as P1DT02H00M00S")
    return duration


SCALARS: dict[type, Codec] = {
    datetime.datetime: Scalar(
        datetime.datetime, lambda value: value.isoformat(), datetime.datetime.fromisoformat,
        advice="Pass a datetime, or its isoformat().",
    ),
    datetime.date: Scalar(
        datetime.date, lambda value: value.isoformat(), datetime.date.fromisoformat, excluded=datetime.datetime,
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
"""The codecs of types whose values become one string."""

REFERENCE_KEYS = {"model", "pk", "database"}


class Reference(Codec):
    """Model instances, which become `{"model": "shop.order", "pk": 42, "database": "default"}`.

    Before the task runs, the codec fetches the instance again from the same row in the same database.
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
        if len(getattr(meta, "pk_fields", ())) > 1:
            self.refuse(name, value, "Its primary key has several columns: pass these.")
        pk = value.pk if isinstance(value.pk, int | str) else meta.pk.value_to_string(value)
        return {"model": meta.label_lower, "pk": pk, "database": value._state.db}

    def decode(self, name: str, value: Any) -> Any:
        """See `Codec`. Fetches the row from the database. Raises `RowMissing` if the row no longer exists."""
        return self._fetch([(name, value)])[0]

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """See `Codec`. Sends one query for each model and database."""
        return self._fetch([(f"{name}[{position}]", value) for position, value in enumerate(values)])

    def _fetch(self, references: Sequence[tuple[str, Any]]) -> list[Any]:
        """Fetch the instances of these references, each with the name of its argument."""
        pks_by_table: dict[tuple[str, str], set[Any]] = {}
        keys = []
        for name, value in references:
            if problem := self._problem(value):
                self.fail(name, value, problem)
            table = value["model"], value["database"]
            pk = self._pk(name, value)
            pks_by_table.setdefault(table, set()).add(pk)
            keys.append((table, pk))
        instances = {
            (label, alias): apps.get_model(label)._base_manager.using(alias).in_bulk(pks)
            for (label, alias), pks in pks_by_table.items()
        }
        for (name, value), (table, pk) in zip(references, keys, strict=True):
            if pk not in instances[table]:
                label = apps.get_model(value["model"])._meta.label
                raise RowMissing(f"{name} is {label} {value['pk']!r}, which the database {table[1]!r} no longer has.")
        return [instances[table][pk] for table, pk in keys]

    def _problem(self, value: Any) -> str:
        """Why `value` is not a reference to a row of one of the models; empty if it is one."""
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


class ListOf(Codec):
    """Lists, or tuples of any length, of values of one type."""

    kinds = frozenset((LIST,))

    def __init__(self, item: Codec | None, container: type = list) -> None:
        self._item = item
        self.inner = (item,)
        self._container = container

    def __str__(self) -> str:
        inner = "Any" if self._item is None else str(self._item)
        return f"list[{inner}]" if self._container is list else f"tuple[{inner}, ...]"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | tuple)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            self.refuse(name, value, "Pass a list.")
        return [encode_part(self._item, f"{name}[{position}]", item) for position, item in enumerate(value)]

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, list):
            self.fail(name, value)
        return self._container(value if self._item is None else self._item.decode_all(name, value))


class TupleOf(Codec):
    """Tuples with a fixed number of values, each of its own type."""

    kinds = frozenset((LIST,))

    def __init__(self, items: Sequence[Codec | None]) -> None:
        self.inner = items

    def __str__(self) -> str:
        return f"tuple[{', '.join('Any' if item is None else str(item) for item in self.inner)}]"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) == len(self.inner)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            self.refuse(name, value, f"Pass a tuple with {len(self.inner)} values.")
        return [encode_part(codec, f"{name}[{index}]", value[index]) for index, codec in enumerate(self.inner)]

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(self.inner):
            self.fail(name, value)
        return tuple(decode_part(codec, f"{name}[{index}]", value[index]) for index, codec in enumerate(self.inner))


class NamedTupleOf(TupleOf):
    """Named tuples of one class, which become lists."""

    def __init__(self, tuple_class: Any, items: Sequence[Codec | None]) -> None:
        super().__init__(items)
        self._class = tuple_class

    def __str__(self) -> str:
        name: str = self._class.__qualname__
        return name

    def fits(self, value: Any) -> bool:
        """See `Codec`. A plain list or tuple with the right number of values fits as well."""
        return type(value) in (self._class, list, tuple) and super().fits(value)

    def decode(self, name: str, value: Any) -> Any:
        return self._class._make(super().decode(name, value))


class DictOf(Codec):
    """Dicts with strings as keys, and with values of one type."""

    kinds = frozenset((OBJECT,))

    def __init__(self, item: Codec) -> None:
        self._item = item
        self.inner = (item,)

    def __str__(self) -> str:
        return f"dict[str, {self._item}]"

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            self.refuse(name, value, "Pass a dict.")
        return {key: self._item.encode(f"{name}[{key!r}]", item) for key, item in value.items()}

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            self.fail(name, value)
        return dict(zip(value, self._item.decode_all(name, list(value.values())), strict=True))


class Dataclass(Codec):
    """Instances of one dataclass, which become JSON objects. A field that is missing in JSON gets its default."""

    kinds = frozenset((OBJECT,))

    def __init__(self, dataclass_type: type[Any]) -> None:
        self._class = dataclass_type
        self.codecs: dict[str, Codec | None] = {}
        """The codec of each field. `annotations` fills this in later, because a dataclass may contain itself."""
        self._fields = {field.name: field for field in dataclasses.fields(dataclass_type) if field.init}
        self._may_differ = may_differ(dataclass_type)
        self._is_checking_inner = False

    def __str__(self) -> str:
        return self._class.__qualname__

    @property
    def uses_database(self) -> bool:
        if self._is_checking_inner:  # the dataclass contains itself
            return False
        self._is_checking_inner = True
        self.inner = [*self.codecs.values()]
        try:
            return super().uses_database
        finally:
            self._is_checking_inner = False

    def fits(self, value: Any) -> bool:
        """See `Codec`. An instance of a subclass does not fit, because its further fields would be lost."""
        return type(value) is self._class

    def encode(self, name: str, value: Any) -> Any:
        if self.fits(value):
            return self._encode_instance(name, value)
        if not isinstance(value, dict):
            self.refuse(name, value, f"Pass a {self}.")
        if problem := self._problem(value):
            self.refuse(name, value, f"It {problem}.")
        return {field: self._encode(name, field, item) for field, item in value.items()}

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            self.fail(name, value)
        if problem := self._problem(value):
            self.fail(name, value, f"it {problem}")
        decoded = {field: decode_part(self.codecs[field], f"{name}.{field}", item) for field, item in value.items()}
        try:
            return self._class(**decoded)
        except (TypeError, ValueError) as error:
            self.fail(name, value, str(error))

    def _encode_instance(self, name: str, value: Any) -> dict[str, Any]:
        """The JSON of an instance. Refuses an instance that would differ if it is made again from its fields."""
        encoded = {field: self._encode(name, field, getattr(value, field)) for field in self._fields}
        if self._may_differ and (why := difference(value)):
            raise InvalidArguments(
                f"{name} is {shown(value)}, which would not arrive as it is: {why}. A dataclass arrives if its fields "
                "are all that makes it: pass what the task needs of this one."
            )
        return encoded

    def _encode(self, name: str, field: str, value: Any) -> Any:
        return encode_part(self.codecs[field], f"{name}.{field}", value)

    def _problem(self, value: Mapping[str, Any]) -> str:
        """A message about an unknown field, or a missing field without a default; empty if there is no such field."""
        for name in value:
            if name not in self._fields:
                return f"has no field {name!r}"
        for name, field in self._fields.items():
            # Without a default, both attributes are `dataclasses.MISSING`.
            is_optional = field.default is not field.default_factory
            if name not in value and not is_optional:
                return f"lacks the field {name!r}"
        return ""


class OneOf(Codec):
    """Values of a union of types, each of which becomes another kind of JSON. The codec of plain types is `None`."""

    def __init__(self, members: Sequence[tuple[Codec | None, frozenset[str], str]]) -> None:
        self.inner = self._codecs = [codec for codec, _, _ in members if codec is not None]
        # A codec that writes a kind of JSON comes before a codec that only also reads it.
        self._by_kind: dict[str, Codec | None] = {kind: codec for codec in self._codecs for kind in codec.also_reads}
        self._by_kind |= {kind: codec for codec, kinds, _ in members for kind in kinds}
        self._name = " | ".join(name for _, _, name in members)
        self.kinds = frozenset(self._by_kind)

    def __str__(self) -> str:
        return self._name

    def fits(self, value: Any) -> bool:
        return any(codec.fits(value) for codec in self._codecs)

    def encode(self, name: str, value: Any) -> Any:
        for codec in self._codecs:
            if codec.fits(value):
                return codec.encode(name, value)
        kind = kind_of(value)
        if kind not in self._by_kind:
            self.refuse(name, value)
        return encode_part(self._by_kind[kind], name, value)

    def decode(self, name: str, value: Any) -> Any:
        kind = kind_of(value)
        if kind not in self._by_kind:
            self.fail(name, value)
        return decode_part(self._by_kind[kind], name, value)

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """See `Codec`. Fetches all model instances of a list with one query, although some values may be `None`."""
        other_kinds = set(self._by_kind) - self._codecs[0].kinds
        if len(self._codecs) != 1 or other_kinds != {NULL}:
            return super().decode_all(name, values)
        decoded = iter(self._codecs[0].decode_all(name, [value for value in values if value is not None]))
        return [None if value is None else next(decoded) for value in values]


UNSET = object()
"""Stands for the value of a field that is not set."""


def may_differ(dataclass_type: Any) -> bool:
    """Whether `__init__` may do more than set the fields from its arguments. Called once for each dataclass.

    `__dataclass_fields__` contains the fields, and also each `ClassVar` and `InitVar`.
    """
    params = vars(dataclass_type).get("__dataclass_params__")  # missing in a subclass without the decorator
    arguments = [field for field in dataclasses.fields(dataclass_type) if field.init]
    return (
        not (params and params.init)
        or hasattr(dataclass_type, "__post_init__")
        or len(dataclass_type.__dataclass_fields__) > len(arguments)
    )


def difference(value: Any) -> str:
    """How an instance that is made again from the fields would differ from the original; empty if it would be equal."""
    fields = dataclasses.fields(value)
    try:
        remade = type(value)(**{field.name: _copied(getattr(value, field.name)) for field in fields if field.init})
    except Exception as error:  # raised by the project, or by Python because an `InitVar` is missing
        return f"it cannot be made again from its fields ({error})"
    field_name = _first_difference(value, remade)
    return field_name and f"made again from its fields, its {field_name} is {shown(getattr(remade, field_name, None))}"


def _first_difference(value: Any, other: Any) -> str:
    """The name of the first field in which two instances of a dataclass differ; empty if they do not differ.

    A field with `init=False` and `compare=False`, such as a cache, may differ.
    """
    for field in dataclasses.fields(value):
        before, after = getattr(value, field.name, UNSET), getattr(other, field.name, UNSET)
        if (field.init or field.compare) and not _is_same(before, after):
            return field.name
    return ""


def _copied(value: Any) -> Any:
    """Copy a list, tuple, dict or mutable dataclass, so that `__post_init__` cannot change the original."""
    value_type = type(value)
    if value_type is list or value_type is tuple:
        return value_type(map(_copied, value))
    if value_type is dict:
        return {key: _copied(item) for key, item in value.items()}
    params = getattr(value, "__dataclass_params__", None)
    return value if params is None or params.frozen else copy.copy(value)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal. Instances of a dataclass without `__eq__` are equal if their fields are equal."""
    if value is other:
        return True
    if type(value) is type(other):
        if isinstance(value, list | tuple):
            return len(value) == len(other) and all(map(_is_same, value, other))
        if isinstance(value, dict):
            return value.keys() == other.keys() and all(_is_same(item, other[key]) for key, item in value.items())
        if dataclasses.is_dataclass(value):
            return not _first_difference(value, other)
    try:
        return bool(value == other)
    except Exception:  # `__eq__` of a class of the project may raise
        return False
