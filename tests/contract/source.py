"""Reads the source of the package, which is the same for every version of Python and Django."""

import ast
import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import django_skipqueue

PACKAGE = Path(django_skipqueue.__file__).parent
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == django_skipqueue.__name__


@functools.cache
def tree_of(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text())


@functools.cache
def trees() -> Sequence[ast.Module]:
    """The syntax trees of all modules of the package except the migrations."""
    return [tree_of(str(path)) for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts]


@functools.cache
def assigned() -> Mapping[str, Sequence[ast.expr]]:
    """The expressions that any module assigns to each name at its top level."""
    expressions = defaultdict[str, list[ast.expr]](list)
    for tree in trees():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                expressions[node.targets[0].id].append(node.value)
    return expressions


@functools.cache
def classes() -> Mapping[str, ast.ClassDef]:
    """The classes at the top level of any module, by name."""
    return {node.name: node for tree in trees() for node in tree.body if isinstance(node, ast.ClassDef)}


def nodes_of(value: Any) -> list[Any]:
    """The syntax nodes that define a class or a function; if it has overloads, only the overloads."""
    body: list[Any] = tree_of(_path_of(value)).body
    for name in value.__qualname__.split("."):
        definitions = [node for node in body if isinstance(node, ast.ClassDef | FUNCTION) and node.name == name]
        body = definitions[-1].body
    return definitions[:-1] or definitions


def _path_of(value: Any) -> str:
    if inspect.isfunction(value):
        return value.__code__.co_filename
    # The `__module__` of a class may be the module from which users import it; its methods have the real file.
    paths_of_methods = [
        function.__code__.co_filename for function in vars(value).values() if inspect.isfunction(function)
    ]
    paths = [
        str(sys.modules[value.__module__].__file__),
        *(path for path in paths_of_methods if path.startswith(str(PACKAGE))),
    ]
    return next(path for path in paths if any(vars(node).get("name") == value.__name__ for node in tree_of(path).body))


def unquoted(annotation: ast.expr) -> ast.expr:
    """An annotation without quotes, which do not change its meaning."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Literal")):
            return annotation
        case ast.Constant(value=str(text)):
            return unquoted(ast.parse(text, mode="eval").body)
    for field, value in ast.iter_fields(annotation):
        if isinstance(value, ast.expr):
            setattr(annotation, field, unquoted(value))
        elif isinstance(value, list):
            setattr(annotation, field, [unquoted(element) for element in value])
    return annotation


def template(node: ast.expr) -> str:
    """The text of an expression that is a string; `{}` stands for each value that the string contains."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left) + template(right)
        case _:
            return "{}"
