"""Choose a codec for each annotation of a task. The codec converts the arguments to JSON, and back.

Most annotations, such as `int`, need no codec, because their values are plain JSON. Then the codec is `None`. The
functions here never raise. An annotation that cannot be understood counts as plain, so that its values must be JSON.

`CallTypes` has the codecs of all parameters of one task. A task whose parameters are all plain JSON has no `CallTypes`,
so that its calls take no additional time.
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
"""For each plain Python type, the kinds of JSON values that represent it."""

UNIONS = (typing.Union, types.UnionType)
SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

OuterDataclasses = dict[type, Dataclass]
"""The codecs of the dataclasses that contain an annotation. They end the recursion if a dataclass contains itself."""


def codec_of(annotation: Any) -> Codec | None:
    """Return the codec for an annotation without forward references; `None` if its values are plain JSON."""
    try:
        return _codec_of(annotation, {})
    except RecursionError:  # an alias that contains itself
        return None


def _codec_of(annotation: Any, outer: OuterDataclasses) -> Codec | None:
    annotation = _unwrapped(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return _union(arguments, outer)
    if origin is tuple or annotation is tuple:
        return _tuple(arguments, outer)
    if origin in SEQUENCES and len(arguments) == 1:
        item_codec = _codec_of(arguments[0], outer)
        return None if item_codec is None else ListOf(item_codec)
    if origin in MAPPINGS and len(arguments) == 2:
        value_codec = _codec_of(arguments[1], outer) if _unwrapped(arguments[0]) is str else None
        return None if value_codec is None else DictOf(value_codec)
    return _codec_of_class(annotation, outer) if isinstance(annotation, type) and origin is None else None


def plain_types(annotation: Any) -> tuple[type, ...]:
    """Which of `str`, `int` and `float` the annotation allows, itself or in a union."""
    return tuple(plain_type for plain_type in (str, int, float) if plain_type in _members(annotation))


def scalar_types(annotation: Any) -> tuple[type, ...]:
    """The types of an annotation that allows only strings, numbers, bools and None; empty for all other annotations."""
    allowed_types = _members(annotation)
    return allowed_types if set(allowed_types) <= {str, int, float, bool, types.NoneType} else ()


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; for any other annotation, only the annotation itself."""
    annotation = _unwrapped(annotation)
    is_union = typing.get_origin(annotation) in UNIONS
    return tuple(map(_unwrapped, typing.get_args(annotation) if is_union else (annotation,)))


def resolved(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Resolve the forward references of annotations. Leaves out annotations that cannot be resolved.

    names: the globals of the module in which the annotations were written.
    """
    for name, annotation in annotations.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(Exception):  # the name is imported only for type checkers, or the annotation is not a type
            yield name, typing.get_type_hints(holder, dict(names), include_extras=True)[name]


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, including `return`, as far as they can be resolved."""
    function = inspect.unwrap(function)
    return dict(resolved(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {})))


def _unwrapped(annotation: Any) -> Any:
    """Unwrap `Annotated`, `NewType` and `type` statements to the underlying type."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # a class of `typing` from Python 3.12 on
            annotation = annotation.__value__
        else:
            return annotation


def _codec_of_class(value_class: type, outer: OuterDataclasses) -> Codec | None:
    if value_class in SCALARS:
        return SCALARS[value_class]
    if value_class in outer:
        return outer[value_class]
    if issubclass(value_class, Enum):
        return Enumeration(value_class) if value_class.__members__ else None
    if issubclass(value_class, Model):
        return Reference((value_class,))
    if issubclass(value_class, tuple) and hasattr(value_class, "_fields"):
        return _named_tuple(value_class, outer)
    return _dataclass(value_class, outer) if dataclasses.is_dataclass(value_class) else None


def _named_tuple(value_class: Any, outer: OuterDataclasses) -> Codec:
    annotations = dict(resolved(getattr(value_class, "__annotations__", {}), _globals_of(value_class)))
    return NamedTupleOf(value_class, [_codec_of(annotations.get(name), outer) for name in value_class._fields])


def _dataclass(value_class: type, outer: OuterDataclasses) -> Codec | None:
    codec = outer[value_class] = Dataclass(value_class)
    types_by_field = {field.name: field.type for field in dataclasses.fields(value_class)}
    annotations = dict(resolved(types_by_field, _globals_of(value_class)))
    for name in types_by_field:
        codec.codecs[name] = _codec_of(annotations[name], outer) if name in annotations else None
    return codec


def _globals_of(value_class: type) -> dict[str, Any]:
    return vars(sys.modules.get(value_class.__module__, types.SimpleNamespace()))


def _tuple(arguments: tuple[Any, ...], outer: OuterDataclasses) -> Codec:
    if not arguments:
        return ListOf(None, tuple)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return ListOf(_codec_of(arguments[0], outer), tuple)
    return TupleOf([] if arguments == ((),) else [_codec_of(argument, outer) for argument in arguments])


def _union(arguments: tuple[Any, ...], outer: OuterDataclasses) -> Codec | None:
    """The codec for a union. `None` if all its types are plain, or if several types become the same kind of JSON.

    If two types became the same kind of JSON, such as a string, we could not tell which type a stored value has.
    """
    members: list[tuple[Codec | None, frozenset[str], str]] = []  # codec, kinds of JSON, name for error messages
    models: list[type[Model]] = []
    plain: frozenset[str] = frozenset()
    for argument in map(_unwrapped, arguments):
        codec = _codec_of(argument, outer)
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
    names = [_name(argument) for argument in map(_unwrapped, arguments) if _codec_of(argument, outer) is None]
    if plain:
        members.append((None, plain, " | ".join(names)))
    all_kinds = [kind for _, member_kinds, _ in members for kind in member_kinds]
    has_distinct_kinds = len(all_kinds) == len(set(all_kinds))
    return OneOf(members) if has_distinct_kinds else None


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
    except TypeError:  # the annotation is not hashable
        return EVERY_KIND


def _name(annotation: Any) -> str:
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class CallTypes:
    """The codecs of a task's parameters, which convert the arguments of a call to JSON, and back."""

    def __init__(self, signature: Signature, codecs: Mapping[str, Codec | None]) -> None:
        parameters = signature.parameters.values()
        self.by_name = codecs
        """The codec of each parameter."""
        self._positional = [(param.name, codecs.get(param.name)) for param in parameters if param.kind in POSITIONAL]
        self._keywords = {param.name for param in parameters if param.kind is not Parameter.POSITIONAL_ONLY}
        self._var_args = next((param.name for param in parameters if param.kind is Parameter.VAR_POSITIONAL), "")
        self._var_kwargs = next((param.name for param in parameters if param.kind is Parameter.VAR_KEYWORD), "")
        self._keywords -= {self._var_args, self._var_kwargs}
        self.uses_database = any(codec is not None and codec.uses_database for codec in codecs.values())
        """Whether decoding arguments may send database queries, to fetch model instances."""

    @classmethod
    def of(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes | None":
        """The codecs for this function's parameters; `None` if all parameters are plain JSON."""
        annotations = annotations_of(function)
        codecs = {name: codec_of(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, codecs) if any(codecs.values()) else None

    @classmethod
    def of_values(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes":
        """Codecs for parameters annotated as strings or numbers: they replace an enumeration member by its value."""
        annotations = annotations_of(function)
        types_by_name = {name: plain_types(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, {name: MemberValue(allowed) for name, allowed in types_by_name.items() if allowed})

    @classmethod
    def of_scalars(cls, function: Callable[..., Any], signature: Signature) -> "CallTypes":
        """Codecs that check the arguments for parameters annotated as strings, numbers, bools or None."""
        annotations = annotations_of(function)
        types_by_name = {name: scalar_types(annotations[name]) for name in signature.parameters if name in annotations}
        return cls(signature, {name: CheckedScalar(allowed) for name, allowed in types_by_name.items() if allowed})

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert the arguments of a call to JSON. An argument may already be JSON. Raises `InvalidArguments`."""
        return self._convert(encode_part, args, kwargs)

    def decode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert the arguments of a call back from JSON. Raises `UndecodableArguments` or `RowMissing`."""
        return self._convert(decode_part, args, kwargs)

    def with_plain(
        self, normalize: Callable[[Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Apply `normalize` to each argument of a call that is plain JSON, and return all arguments."""
        return self._convert(lambda codec, _, value: normalize(value) if codec is None else value, args, kwargs)

    def encode_one(self, name: str, value: Any) -> Any:
        """Convert one argument to JSON. `name`: its parameter. For `*args` and `**kwargs`, pass the list or dict."""
        if name == self._var_args and isinstance(value, list | tuple):
            codec = self.by_name.get(name)
            return encode_part(codec and ListOf(codec), name, value)
        if name == self._var_kwargs and isinstance(value, dict):
            codec = self.by_name.get(name)
            return encode_part(codec and DictOf(codec), name, value)
        is_parameter = name in self.by_name and name not in (self._var_args, self._var_kwargs)
        return encode_part(self.by_name[name] if is_parameter else self._codec(name), name, value)

    def _convert(
        self, convert: Callable[[Codec | None, str, Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        positional, var_args = self._positional, self._var_args
        converted = [convert(codec, name, value) for (name, codec), value in zip(positional, args, strict=False)]
        converted += [
            convert(self.by_name.get(var_args), f"{var_args}[{position}]", value)
            for position, value in enumerate(args[len(positional) :])
        ]
        return converted, {name: convert(self._codec(name), name, value) for name, value in kwargs.items()}

    def _codec(self, keyword: str) -> Codec | None:
        return self.by_name.get(keyword if keyword in self._keywords else self._var_kwargs)
