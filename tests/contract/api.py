"""Lists the names that users import, with their signatures. Annotations and defaults are read from the source."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import import_module
from inspect import isclass, isfunction, unwrap
from operator import attrgetter
from typing import Any

from django.db.models import NOT_PROVIDED, Manager, Model

from .adapter import ELSEWHERE, objects
from .public import PUBLIC, Members
from .source import FUNCTION, assigned, is_ours, nodes_of, unquoted

SPECIAL = ("__init__", "__call__", "__enter__", "__aenter__", "__iter__", "__len__", "__getitem__")
DECORATORS = ("classmethod", "staticmethod", "property", "cached_property", "contextmanager", "fixture")
Lines = Iterator[tuple[str, list[str]]]
"""Pairs of the name of a member of a class, and the lines about it."""


def api() -> Iterator[str]:
    """Yield a line for each public name, for each member of a class, and for each type alias in an annotation.

    An alias that several modules define for different types is left out.
    """
    lines = [*objects()]
    for module, name, members in _public():
        lines += _lines_about(f"{module}.{name}", attrgetter(name)(import_module(module)), members)
    for described_class, members in ELSEWHERE.items():
        lines += _lines_about(described_class.__name__, described_class, members)
    yield from lines
    for name in {word for line in lines for word in re.findall(r"\w+", line)} & set(assigned()):
        match assigned()[name]:
            case [ast.Subscript() | ast.BinOp(op=ast.BitOr()) as aliased_type]:
                yield f"{name} means {_annotation(aliased_type)}"


@cache
def _public() -> list[tuple[str, str, Members]]:
    """The module and members of each public name: a name in `PUBLIC` or `__all__`, or else each class of the module."""
    public_names = []
    for module, names in PUBLIC.items():
        loaded_module = import_module(module)
        classes = [name for name, value in vars(loaded_module).items() if isclass(value) and value.__module__ == module]
        names = dict.fromkeys(getattr(loaded_module, "__all__", () if names else classes)) | names
        public_names += [(module, name, members) for name, members in names.items()]
    return public_names


@cache
def _classes() -> list[Any]:
    return [attrgetter(name)(import_module(module)) for module, name, _ in _public()]


def _lines_about(path: str, value: Any, members: Members) -> Iterator[str]:
    """Yield the lines about one public name."""
    if isfunction(function := unwrap(value)):
        for node in nodes_of(function):
            yield from (path + line for line in _signature_lines(node, function.__globals__))
        return
    lines_of: dict[str, list[str]] = {}
    if isinstance(value, Manager):
        lines_of = members_of(type(value.all())) | members_of(type(value))
    elif isclass(value):
        yield f"{path} is a class{_bases(value)}"
        lines_of = members_of(value)
        if issubclass(value, Model):
            yield from (f"{path}{line}" for line in _model_lines(value))
            columns = {field.name for field in (*value._meta.get_fields(), *value._meta.managers)}
            lines_of = {name: lines for name, lines in lines_of.items() if name not in columns}
    else:
        yield f"{path}: {', '.join(value) if isinstance(value, tuple) else type(value).__name__}"
    for name in lines_of if members is None else members.split():
        yield from (path + line for line in lines_of.get(name, [f".{name} is missing"]))


def _bases(described_class: type) -> str:
    """The nearest base classes that are public, or that other packages define."""
    bases = [base for base in described_class.__mro__[1:-1] if base in _classes() or not is_ours(base.__module__)]
    nearest = [base for base in bases if not any(base in other.__mro__[1:] for other in bases)]
    return "".join(f", {base.__name__}" for base in nearest if base.__name__ != "Generic")


def _model_lines(model: type[Model]) -> Iterator[str]:
    """Yield the table, the permissions and the fields of a model, with the defaults of Python and of the database."""
    options = model._meta
    yield f" has the table {options.db_table}"
    codenames = [codename for codename, _ in options.permissions]
    yield from (f" has the permission {name}" for name in [*options.default_permissions, *codenames])
    for field in options.get_fields():
        description = [type(field).__name__, *(["null"] if getattr(field, "null", False) else [])]
        for name in ("default", "db_default"):
            value = getattr(field, name, NOT_PROVIDED)
            if value is not NOT_PROVIDED:
                description.append(f"{name} {getattr(value, '__name__', None) or repr(getattr(value, 'value', value))}")
        yield f".{field.name} is a field: {', '.join(description)}"


def members_of(described_class: type) -> dict[str, list[str]]:
    """The public members of a class, with the members that it inherits from base classes that are not public."""
    bases = [base for base in reversed(described_class.__mro__) if is_ours(base.__module__)]
    return {
        name: lines
        for base in bases
        if base is described_class or base not in _classes()
        for node in nodes_of(base)[0].body
        for name, lines in _member_lines(node, vars(sys.modules[base.__module__]))
    }


def _member_lines(node: ast.stmt, names: Mapping[str, Any]) -> Lines:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in SPECIAL or name[0] != "_":
            yield name, [f".{name}{line}" for line in _signature_lines(node, names, of_class=True)]
            yield from _attributes(node) if name == "__init__" else ()
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default) if name[0] != "_":
            default_text = "" if default is None else f" = {ast.unparse(_value(default, names))}"
            yield name, [f".{name}: {_annotation(annotation)}{default_text}"]
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Attribute(value=ast.Name(id=module), attr=attribute)
        ) if name[0] != "_" and isfunction(
            function := getattr(names[module], attribute)
        ):  # a method that is assigned from a function of a module
            globals_of_module = function.__globals__
            yield (
                name,
                [
                    f".{name}{line}"
                    for node in nodes_of(function)
                    for line in _signature_lines(node, globals_of_module, of_class=True)
                ],
            )
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[0] != "_":
            yield name, [f".{name} = {ast.unparse(_value(value, names))}"]


def _attributes(init: FUNCTION) -> Lines:
    """Yield the attributes that `__init__` sets, each with the annotation of the argument of the same name, if any."""
    annotations = {argument.arg: argument.annotation for argument in (*init.args.args, *init.args.kwonlyargs)}
    for node in ast.walk(init):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if name[0] != "_":
                annotation = annotations.get(name)
                yield name, [f".{name}{f': {_annotation(annotation)}' if annotation else ' is set by __init__'}"]


def _signature_lines(node: FUNCTION, names: Mapping[str, Any], *, of_class: bool = False) -> Iterator[str]:
    """Yield the signature of a function, without `self`, and a line for each option that it takes as a TypedDict.

    names: the globals of its module.
    """
    decorators = [ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list]
    arguments = deepcopy(node.args)
    if of_class and "staticmethod" not in decorators:
        del (arguments.posonlyargs or arguments.args)[0]
    for part in ast.walk(arguments):
        if isinstance(part, ast.arg) and part.annotation is not None:
            part.annotation = unquoted(part.annotation)
    arguments.kw_defaults = [_value(default, names) for default in arguments.kw_defaults]
    arguments.defaults = [_value(default, names) for default in arguments.defaults]
    return_annotation = f" -> {_annotation(node.returns)}" if node.returns else ""
    marks = ["async"] * isinstance(node, ast.AsyncFunctionDef) + [name for name in decorators if name in DECORATORS]
    yield f"({ast.unparse(arguments)}){return_annotation}" + "".join(f", {mark}" for mark in marks)
    match node.args.kwarg:
        case ast.arg(annotation=ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name))):
            yield from (f" takes {option}" for option in _key_lines(names[name]))


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    """A default value; the name of a constant is replaced by its value."""
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    return ast.Constant(value) if isinstance(value, str | int | float) else node


def _key_lines(typed_dict: Any) -> Iterator[str]:
    """Yield the keys of a TypedDict with their types, the keys of its base classes first."""
    [node], names = nodes_of(typed_dict), vars(sys.modules[typed_dict.__module__])
    for base in node.bases:
        match base:
            case ast.Name(id=name):
                base_class = names[name]
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                base_class = getattr(names[module], name)
            case _:
                continue
        if is_ours(base_class.__module__):
            yield from _key_lines(base_class)
    yield from (lines[0][1:] for key in node.body for _, lines in _member_lines(key, names))


def _annotation(node: ast.expr) -> str:
    return ast.unparse(unquoted(deepcopy(node)))
