"""Choose the codec of an annotation: `None` if its values are plain JSON, as for most annotations.

Invariant: nothing here raises. An annotation that cannot be read, or that says nothing about JSON, counts as plain, so
that its values are checked as JSON.

`CallTypes` has the codecs of the parameters of one task. Invariant: a task whose parameters are all plain JSON has no
`CallTypes`, so that its calls cost nothing more.
"""

import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from inspect import Parameter, Signature
from typing import Any

from django.db.models import Model

from .codecs import (
    BOOL,
    EVERY_KIND,
    LIST,
    NULL,
    NUMBER,
    OBJECT,
    SCALARS,
    STRING,
    CheckedScalar,
    Codec,
    Dataclass,
    DictOf,
    Enumeration,
    ListOf,
    MemberValue,
    NamedTupleOf,
    OneOf,
    Reference,
    TupleOf,
    decode_part,
    encode_part,
    kind_of,
)

KINDS_OF_TYPES: dict[Any, frozenset[str]] = {
    type(None): frozenset((NULL,)),
    bool: frozenset((BOOL,)),
    int: frozenset((NUMBER,)),
    float: frozenset((NUMBER,)),
    str: frozenset((STRING,)),
    list: frozenset((LIST,)),
    dict: frozenset((OBJECT,)),
}
"""The JSON of the plain types."""

UNIONS = (typing.Union, types.UnionType)
SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

Known = dict[type, Dataclass]
"""The codecs of the dataclasses around an annotation: a dataclass may contain itself."""


def codec_of(annotation: Any) -> Codec | None:
    """The codec of an annotation whose names are resolved; `None`: plain JSON."""
    try:
        return _codec_of(annotation, {})
    except RecursionError:  # an alias that contains itself
        return None


def _codec_of(annotation: Any, known: Known) -> Codec | None:
    annotation = _bare(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return _union(arguments, known)
    if origin is tuple or annotation is tuple:
        return _tuple(arguments, known)
    if origin in SEQUENCES and len(arguments) == 1:
        item = _codec_of(arguments[0], known)
        return None if item is None else ListOf(item)
    if origin in MAPPINGS and len(arguments) == 2:
        item = _codec_of(arguments[1], known) if _bare(arguments[0]) is str else None
        return None if item is None else DictOf(item)
    return _of_class(annotation, known) if isinstance(annotation, type) and origin is None else None


def plain_types(annotation: Any) -> tuple[type, ...]:
    """Of `str`, `int` and `float`, those that the annotation is, or that are in its union."""
    return tuple(kind for kind in (str, int, float) if kind in _members(annotation))


def scalar_types(annotation: Any) -> tuple[type, ...]:
    """The types of an annotation of only texts, numbers, bools and None; empty for every other annotation."""
    kinds = _members(annotation)
    return kinds if set(kinds) <= {str, int, float, bool, types.NoneType} else ()


def _members(annotation: Any) -> tuple[Any, ...]:
    annotation = _bare(annotation)
    return tuple(map(_bare, typing.get_args(annotation) if typing.get_origin(annotation) in UNIONS else (annotation,)))


def resolved(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each annotation with its names resolved in these globals. Leaves out annotations that cannot be resolved."""
    for name, annotation in annotations.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(Exception):  # a name that is imported for type checkers alone, or an annotation that is no type
            yield name, typing.get_type_hints(holder, dict(names), include_extras=True)[name]


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, with `return`, that can be resolved."""
    function = inspect.unwrap(function)
    return dict(resolved(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {})))


def _bare(annotation: Any) -> Any:
    """The type behind `Annotated`, `NewType` and `type` statements."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # in `typing` from Python 3.12 on
            annotation = annotation.__value__
        else:
            return annotation


def _of_class(kind: type, known: Known) -> Codec | None:
    if kind in SCALARS:
        return SCALARS[kind]
    if kind in known:
        return known[kind]
    if issubclass(kind, Enum):
        return Enumeration(kind) if kind.__members__ else None
    if issubclass(kind, Model):
        return Reference((kind,))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind, known)
    return _dataclass(kind, known) if dataclasses.is_dataclass(kind) else None


def _named_tuple(kind: Any, known: Known) -> Codec:
    found = dict(resolved(getattr(kind, "__annotations__", {}), _globals_of(kind)))
    return NamedTupleOf(kind, [_codec_of(found.get(name), known) for name in kind._fields])


def _dataclass(kind: type, known: Known) -> Codec | None:
    codec = known[kind] = Dataclass(kind)
    annotations = {field.name: field.type for field in dataclasses.fields(kind)}
    found = dict(resolved(annotations, _globals_of(kind)))
    for field in dataclasses.fields(kind):
        codec.codecs[field.name] = _codec_of(found[field.name], known) if field.name in found else None
    return codec


def _globals_of(kind: type) -> dict[str, Any]:
    return vars(sys.modules.get(kind.__module__, types.SimpleNamespace()))


def _tuple(arguments: tuple[Any, ...], known: Known) -> Codec:
    if not arguments:
        return ListOf(None, tuple)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return ListOf(_codec_of(arguments[0], known), tuple)
    return TupleOf([] if arguments == ((),) else [_codec_of(argument, known) for argument in arguments])


def _union(arguments: tuple[Any, ...], known: Known) -> Codec | None:
    """The codec if the kind of JSON shows the type of a value; `None` if it does not, or if all types are plain."""
    members: list[tuple[Codec | None, frozenset[str], str]] = []
    models: list[type[Model]] = []
    plain: frozenset[str] = frozenset()
    for argument in map(_bare, arguments):
        codec = _codec_of(argument, known)
        if isinstance(codec, Reference):
            models.append(argument)
        elif codec is not None:
            members.append((codec, codec.kinds, str(codec)))
        else:
            plain |= _plain_kinds(argument)
    if models:
        reference = Reference(tuple(models))
        members.append((reference, reference.kinds, str(reference)))
    if not members:
        return None
    names = [_name(argument) for argument in map(_bare, arguments) if _codec_of(argument, known) is None]
    if plain:
        members.append((None, plain, " | ".join(names)))
    kinds = [kind for _, kinds, _ in members for kind in kinds]
    return OneOf(members) if len(kinds) == len(set(kinds)) else None


def _plain_kinds(annotation: Any) -> frozenset[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return frozenset(map(kind_of, typing.get_args(annotation)))
    origin = typing.get_origin(annotation) or annotation
    if origin in SEQUENCES:
        return KINDS_OF_TYPES[list]
    if origin in MAPPINGS:
        return KINDS_OF_TYPES[dict]
    try:
        return KINDS_OF_TYPES.get(origin, EVERY_KIND)
    except TypeError:  # an annotation that cannot be a key
        return EVERY_KIND


def _name(annotation: Any) -> str:
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class CallTypes:
    def __init__(self, signature: Signature, codecs: Mapping[str, Codec | None]) -> None:
        parameters = signature.parameters.values()
        self.by_name = codecs
        """The codec of each parameter."""
        self._places = [(each.name, codecs.get(each.name)) for each in parameters if each.kind in POSITIONAL]
        self._named = {each.name for each in parameters if each.kind is not Parameter.POSITIONAL_ONLY}
        self._rest = next((each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL), "")
        self._others = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), "")
        self._named -= {self._rest, self._others}
        self.uses_database = any(codec is not None and codec.uses_database for codec in codecs.values())
        """Whether decoding may send queries."""

    @classmethod
    def of(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes | None":
        """The types of this function's parameters; `None` if all are plain JSON."""
        annotations = annotations_of(function)
        codecs = {name: codec_of(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, codecs) if any(codecs.values()) else None

    @classmethod
    def of_values(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes":
        """The types of the parameters declared as texts and numbers: a member that is one counts as its value."""
        annotations = annotations_of(function)
        kinds = {name: plain_types(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, {name: MemberValue(found) for name, found in kinds.items() if found})

    @classmethod
    def of_scalars(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes":
        """The types of the parameters declared as texts, numbers, bools and None, to check the values of a call."""
        annotations = annotations_of(function)
        kinds = {name: scalar_types(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, {name: CheckedScalar(found) for name, found in kinds.items() if found})

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call as JSON. An argument may be JSON already. Raises `InvalidArguments`."""
        return self._convert(encode_part, args, kwargs)

    def decode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call from their JSON. Raises `UndecodableArguments`, or `RowMissing`."""
        return self._convert(decode_part, args, kwargs)

    def with_plain(
        self, normalize: Callable[[Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call. `normalize` is applied to each argument that is plain JSON."""
        return self._convert(lambda codec, _, value: normalize(value) if codec is None else value, args, kwargs)

    def encode_one(self, name: str, value: Any) -> Any:
        """The JSON of one argument by its name; of `*args` and `**kwargs` the whole list or dict."""
        if name == self._rest and isinstance(value, list | tuple):
            codec = self.by_name.get(name)
            return encode_part(codec and ListOf(codec), name, value)
        if name == self._others and isinstance(value, dict):
            codec = self.by_name.get(name)
            return encode_part(codec and DictOf(codec), name, value)
        is_parameter = name in self.by_name and name not in (self._rest, self._others)
        return encode_part(self.by_name[name] if is_parameter else self._codec(name), name, value)

    def _convert(
        self, convert: Callable[[Codec | None, str, Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        places, rest = self._places, self._rest
        converted = [convert(codec, name, value) for (name, codec), value in zip(places, args, strict=False)]
        converted += [
            convert(self.by_name.get(rest), f"{rest}[{number}]", value)
            for number, value in enumerate(args[len(places) :])
        ]
        return converted, {name: convert(self._codec(name), name, value) for name, value in kwargs.items()}

    def _codec(self, keyword: str) -> Codec | None:
        return self.by_name.get(keyword if keyword in self._named else self._others)
