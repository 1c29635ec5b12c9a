"""Lists the texts of errors and of system checks, which are read from the source of the package."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from inspect import isclass

from django_skipqueue import exceptions

from .source import FUNCTION, assigned, template, trees

PASS_THROUGH = ("_", "gettext", "printable")
"""Functions that return their argument as a text for a person."""


def errors() -> Iterator[str]:
    """Yield `Class: message` for every exception message in the package.

    This includes the default messages of exceptions that are raised without a message. `problem: text` is a message
    that a `*problem*` function returns to its caller, which raises an error or reports a system check with it.
    """
    exception_names = {
        _name(node.exc.func) for node in nodes() if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    for node in nodes():
        if isinstance(node, ast.Call) and _name(node.func) in exception_names - {"", "with_traceback"} and node.args:
            yield from _lines(_name(node.func), node.args[0])
        elif isinstance(node, FUNCTION) and "problem" in node.name:
            for sentence in _returned(node):
                yield from _lines("problem", sentence)
    for name, value in vars(exceptions).items():
        if isclass(value) and issubclass(value, BaseException):
            yield f"{name} without a text: {' '.join(str(value()).split())}"


def checks() -> Iterator[str]:
    """Yield the id and the level of each system check with its text, and its id with its hint."""
    for node in nodes():
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            check_id = template(keywords["id"]) if "id" in keywords else ""
            if check_id.startswith("skipqueue."):
                yield from (f"{check_id} {_name(node.func)}: {text}" for text in _texts(node.args[0]))
                yield from (f"{check_id} hint: {text}" for text in _texts(keywords["hint"]))


@cache
def nodes() -> list[ast.AST]:
    return [node for tree in trees() for node in ast.walk(tree)]


@cache
def results() -> dict[str, list[ast.expr]]:
    """The expressions that functions return, by the name of the function."""
    returned = defaultdict[str, list[ast.expr]](list)
    for node in nodes():
        if isinstance(node, FUNCTION):
            returned[node.name] += _returned(node)
    return returned


def _returned(function: ast.AST) -> list[ast.expr]:
    """The expressions that a function returns or yields; if it returns a call, the arguments of the call."""
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield) and node.value]
    return [
        part
        for value in values
        for part in (
            [*value.args, *(keyword.value for keyword in value.keywords)] if isinstance(value, ast.Call) else [value]
        )
    ]


def _lines(name: str, node: ast.expr) -> Iterator[str]:
    yield from (f"{name}: {' '.join(text.split())}" for text in _texts(node) if text.replace("{}", "").strip(" :.,;"))


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the possible texts of an expression, which may name a constant, or call a function of the package."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in PASS_THROUGH:
            yield from _texts(node.args[0])
        case ast.Call(func=ast.Name(id=name)) if name in results():
            yield from map(template, results()[name])
        case ast.Name(id=name) if name in assigned():
            yield from (text for text in map(template, assigned()[name]) if text != "{}")
        case ast.BinOp(left=left, op=ast.Mod()):
            yield from (re.sub(r"%\(\w+\)s", "{}", text) for text in _texts(left))
        case _:
            yield template(node)


def _name(node: ast.expr) -> str:
    """The name of a class or function; empty if the expression is not a name, such as `type(error)`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
