"""`CallTypes`: the codecs of the parameters of one task.

Invariant: a task whose parameters are all plain JSON has no `CallTypes`, so that its calls cost nothing more.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from .annotations import annotations_of, codec_of, plain_types, scalar_types
from .codec import Codec, decode_part, encode_part
from .collections import DictOf, ListOf
from .scalars import CheckedScalar, MemberValue

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
        """The arguments of a call as JSON, which is accepted as well. Raises `InvalidArguments`."""
        return self._convert(encode_part, args, kwargs)

    def decode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of which this is the JSON. Raises `UndecodableArguments`, or `RowMissing`."""
        return self._convert(decode_part, args, kwargs)

    def with_plain(
        self, normalize: Callable[[Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, of which those that are plain JSON have been through `normalize`."""
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
