"""The codecs of values that hold others: lists, tuples, dicts, dataclasses, and what may be of several types.

An instance of a dataclass is made again from its fields, as decoding does, and the two are compared. Invariant: the
instance itself is not changed, whatever its `__post_init__` does with lists and dicts.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...exceptions import InvalidArguments
from .codec import LIST, NULL, OBJECT, Codec, decode_part, encode_part, kind_of, shown


class ListOf(Codec):
    """Lists, or tuples of any length, of one type."""

    kinds = frozenset((LIST,))

    def __init__(self, item: Codec | None, make: type = list) -> None:
        self._item = item
        self._make = make

    def __str__(self) -> str:
        inner = "Any" if self._item is None else str(self._item)
        return f"list[{inner}]" if self._make is list else f"tuple[{inner}, ...]"

    @property
    def uses_database(self) -> bool:
        return self._item is not None and self._item.uses_database

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | tuple)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            self.refuse(name, value, "Pass a list.")
        return [encode_part(self._item, f"{name}[{position}]", item) for position, item in enumerate(value)]

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, list):
            self.fail(name, value)
        return self._make(value if self._item is None else self._item.decode_all(name, value))


class TupleOf(Codec):
    kinds = frozenset((LIST,))

    def __init__(self, items: Sequence[Codec | None]) -> None:
        self._items = items

    def __str__(self) -> str:
        return f"tuple[{', '.join('Any' if item is None else str(item) for item in self._items)}]"

    @property
    def uses_database(self) -> bool:
        return any(item is not None and item.uses_database for item in self._items)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) == len(self._items)

    def encode(self, name: str, value: Any) -> Any:
        if not self.fits(value):
            self.refuse(name, value, f"Pass a tuple with {len(self._items)} values.")
        return [encode_part(item, f"{name}[{place}]", value[place]) for place, item in enumerate(self._items)]

    def decode(self, name: str, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(self._items):
            self.fail(name, value)
        return tuple(decode_part(item, f"{name}[{place}]", value[place]) for place, item in enumerate(self._items))


class NamedTupleOf(TupleOf):
    def __init__(self, kind: Any, items: Sequence[Codec | None]) -> None:
        super().__init__(items)
        self._class = kind

    def __str__(self) -> str:
        name: str = self._class.__qualname__
        return name

    def fits(self, value: Any) -> bool:
        """See `Codec`. A list and a tuple count as their values."""
        return type(value) in (self._class, list, tuple) and super().fits(value)

    def decode(self, name: str, value: Any) -> Any:
        return self._class._make(super().decode(name, value))


class DictOf(Codec):
    kinds = frozenset((OBJECT,))

    def __init__(self, item: Codec) -> None:
        self._item = item

    def __str__(self) -> str:
        return f"dict[str, {self._item}]"

    @property
    def uses_database(self) -> bool:
        return self._item.uses_database

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
    """Instances of one dataclass, as objects of the fields that make it. A field that is missing has its default."""

    kinds = frozenset((OBJECT,))

    def __init__(self, kind: type[Any]) -> None:
        self._class = kind
        self.codecs: dict[str, Codec | None] = {}
        """By field. Filled in later, because a dataclass may contain itself."""
        self._fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
        self._may_differ = may_differ(kind)
        self._is_asked = False

    def __str__(self) -> str:
        return self._class.__qualname__

    @property
    def uses_database(self) -> bool:
        if self._is_asked:  # by itself
            return False
        self._is_asked = True
        try:
            return any(codec is not None and codec.uses_database for codec in self.codecs.values())
        finally:
            self._is_asked = False

    def fits(self, value: Any) -> bool:
        """See `Codec`. An instance of a subclass would lose its other fields."""
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
        given = {field: decode_part(self.codecs[field], f"{name}.{field}", item) for field, item in value.items()}
        try:
            return self._class(**given)
        except (TypeError, ValueError) as error:
            self.fail(name, value, str(error))

    def _encode_instance(self, name: str, value: Any) -> dict[str, Any]:
        """The JSON of an instance. Refuses one that would be another one when it is made again from its fields."""
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
        """The first field that is unknown, or that is missing and has no default; empty if all is well."""
        for name in value:
            if name not in self._fields:
                return f"has no field {name!r}"
        for name, field in self._fields.items():
            is_optional = field.default is not field.default_factory  # one of the two is not MISSING
            if name not in value and not is_optional:
                return f"lacks the field {name!r}"
        return ""


class OneOf(Codec):
    """Values of several types, each of which writes other kinds of JSON. `None` stands for the plain ones."""

    def __init__(self, members: Sequence[tuple[Codec | None, frozenset[str], str]]) -> None:
        self._codecs = [codec for codec, _, _ in members if codec is not None]
        self._by_kind: dict[str, Codec | None] = {kind: codec for codec in self._codecs for kind in codec.also}
        self._by_kind |= {kind: codec for codec, kinds, _ in members for kind in kinds}
        self._name = " | ".join(name for _, _, name in members)
        self.kinds = frozenset(self._by_kind)

    def __str__(self) -> str:
        return self._name

    @property
    def uses_database(self) -> bool:
        return any(codec.uses_database for codec in self._codecs)

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
        """See `Codec`. The rows of optional references are fetched together."""
        if len(self._codecs) != 1 or set(self._by_kind) - self._codecs[0].kinds != {NULL}:
            return super().decode_all(name, values)
        decoded = iter(self._codecs[0].decode_all(name, [value for value in values if value is not None]))
        return [None if value is None else next(decoded) for value in values]


MISSING = object()
"""In place of a field that is not set."""


def may_differ(kind: Any) -> bool:
    """Whether making an instance does more than to set its fields, all of which are arguments. Asked once for a class.

    The fields of Python's own dict are those, and each `ClassVar` and `InitVar`.
    """
    params = vars(kind).get("__dataclass_params__")  # none of its own: a subclass without the decorator
    arguments = [field for field in dataclasses.fields(kind) if field.init]
    return (
        not (params and params.init)
        or hasattr(kind, "__post_init__")
        or len(kind.__dataclass_fields__) > len(arguments)
    )


def difference(value: Any) -> str:
    """Why the instance made again would be another one; empty if it would be the same."""
    fields = dataclasses.fields(value)
    try:
        again = type(value)(**{each.name: _copied(getattr(value, each.name)) for each in fields if each.init})
    except Exception as error:  # code of the project; and an `InitVar` is no field, so its value is missing here
        return f"it cannot be made again from its fields ({error})"
    found = _differing(value, again)
    return found and f"made again from its fields, its {found} is {shown(getattr(again, found, None))}"


def _differing(value: Any, other: Any) -> str:
    """The first field in which two instances of a dataclass differ; empty if there is none.

    One with `init=False` and `compare=False` may differ: a cache, for example.
    """
    for field in dataclasses.fields(value):
        before, after = getattr(value, field.name, MISSING), getattr(other, field.name, MISSING)
        if (field.init or field.compare) and not _is_same(before, after):
            return field.name
    return ""


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()}
    params = getattr(value, "__dataclass_params__", None)
    return value if params is None or params.frozen else copy.copy(value)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal; of dataclasses without a comparison, whether their fields are."""
    if value is other:
        return True
    if type(value) is type(other):
        if isinstance(value, list | tuple):
            return len(value) == len(other) and all(map(_is_same, value, other))
        if isinstance(value, dict):
            return value.keys() == other.keys() and all(_is_same(item, other[key]) for key, item in value.items())
        if dataclasses.is_dataclass(value):
            return not _differing(value, other)
    try:
        return bool(value == other)
    except Exception:  # a comparison of the project's
        return False
