"""Lists the metrics, events, signals and log lines of the package. To produce all of these, it invents values."""

import ast
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from inspect import signature
from itertools import product
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from unittest.mock import patch

from django.dispatch import Signal
from django.test import override_settings

from django_skipqueue import signals as public_signals

from . import adapter
from .api import members_of
from .source import template, trees

LEVELS = {name: name.upper() for name in ("debug", "info", "warning", "error", "critical")} | {"exception": "ERROR"}
RECORD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "taskName"}
"""The attributes that Python gives to every log record."""


def metrics() -> Iterator[str]:
    """Yield a line for each metric, with its name, labels, kind and help."""
    for name, kind, labels, text in adapter.metrics():
        yield f"{name}{{{', '.join(labels)}}} is a {kind}: {text}"


def events() -> Iterator[str]:
    """Yield a line for each field of an event."""
    for event_class in adapter.event_classes():
        members = members_of(event_class)
        yield from (event_class.__name__ + line for field in fields(event_class) for line in members[field.name])


def signals() -> Iterator[str]:
    """Yield a line for the sender of each signal, and a line for each argument with its types."""
    signals_by_name = {name: value for name, value in vars(public_signals).items() if isinstance(value, Signal)}
    names_by_beginning = defaultdict[str, set[str]](set)

    def receiver_of(name: str) -> Callable[..., None]:
        def receive(sender: str, signal: Signal, **arguments: Any) -> None:
            names_by_beginning[f"{name} is sent by"].add(sender)
            for argument, value in arguments.items():
                names_by_beginning[f"{name}({argument}):"].add(type(value).__name__)

        return receive

    with _captured(), _receivers({signal: receiver_of(name) for name, signal in signals_by_name.items()}):
        _send(Filling(True), Filling(False))
    yield from (f"{name} {' or '.join(sorted(type_names))}" for name, type_names in names_by_beginning.items())
    yield from (f"{name} is never sent" for name in signals_by_name if f"{name} is sent by" not in names_by_beginning)


def logs() -> Iterator[str]:
    """Yield the text, level, logger and fields of each log line that an event or a function writes."""
    fillings = [Filling(*options) for options in product((True, False), range(3))]
    with _receivers({}):
        with _captured() as event_records:
            _send(*fillings)
        with _captured(logging.INFO) as large_event_records:
            _send(Filling(True, 0, size=60))
    with _captured() as function_records:
        for function, filling in product(adapter.line_writers(), fillings):
            arguments = signature(function).parameters.values()
            function(**{argument.name: _invented(argument.annotation, "text", filling) for argument in arguments})
    event_names = {getattr(record, "event", None) for record in event_records}
    other_records = [record for record in function_records if getattr(record, "event", None) not in event_names]
    yield from map(_line, [*event_records, *large_event_records, *other_records])
    yield from _plain_lines()


@contextmanager
def _receivers(receivers: Mapping[Signal, Callable[..., None]]) -> Iterator[None]:
    """Within the `with` block, the signals have only these receivers."""
    with ExitStack() as stack:
        for signal in vars(public_signals).values():
            if isinstance(signal, Signal):
                stack.enter_context(patch.object(signal, "receivers", []))
        for signal, receiver in receivers.items():
            signal.connect(receiver, weak=False)
        yield


@contextmanager
def _captured(level: int = logging.DEBUG) -> Iterator[list[logging.LogRecord]]:
    """Collect the log records of a process with one database and without a worker."""
    logger, records = logging.getLogger("django_skipqueue"), list[logging.LogRecord]()
    handler, level_before = logging.Handler(), logger.level
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    no_worker = dict.fromkeys(adapter.WORKER_OF_PROCESS)
    with (
        override_settings(SKIPQUEUE={}),
        patch.dict(adapter.WORKER_OF_PROCESS, no_worker),
        patch.multiple(logger, handlers=[handler], filters=[], propagate=False),
    ):
        logger.setLevel(level)  # `patch` would not clear the logger's cache of enabled levels
        try:
            yield records
        finally:
            logger.setLevel(level_before)


def _line(record: logging.LogRecord) -> str:
    extra = {name: value for name, value in vars(record).items() if name not in RECORD_ATTRIBUTES and value is not None}
    event = extra.pop("event", "no event")
    error = ["the exception"] * bool(record.exc_info)
    return f"{record.getMessage()} ({record.levelname} of {record.name}: {', '.join([event, *sorted(extra), *error])})"


def _plain_lines() -> Iterator[str]:
    """Yield the log lines that do not belong to an event: calls of a logger with a literal text."""
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=logger, attr=level), args=[text, *_]) if level in LEVELS:
                    line = re.sub("%[rs]", "{}", template(text))
                    if "logger" in ast.unparse(logger) and line != "{}":
                        yield f"{line} ({LEVELS[level]})"


# Invented values


class Filling(NamedTuple):
    """Options for the invented values."""

    gives_options: bool
    """Whether an optional value is invented, and not `None`."""
    choice: int | None = None
    """The index of the value to use from `adapter.CHOICES`; `None` means not to use these values."""
    size: int = 1
    """The number of values in a list."""


def _send(*fillings: Filling) -> None:
    """Send each event with each filling."""
    for event_class, filling in product(adapter.event_classes(), fillings):
        adapter.send(_invented(event_class, "", filling))


def _invented(annotation: Any, name: str, filling: Filling) -> Any:
    """Invent a value of the type `annotation`. An invented string is the name of the field or argument."""
    origin, arguments, field = get_origin(annotation), get_args(annotation), name.rpartition(".")[2]
    if origin in (Union, UnionType):
        return None if type(None) in arguments and not filling.gives_options else _invented(arguments[0], name, filling)
    if origin is Literal:
        return arguments[0]
    if origin is not None and issubclass(origin, Mapping):
        mapping = {"text": _invented(arguments[1], "text", filling)}
        return defaultdict(lambda: "text", mapping) if arguments[1] is Any else mapping
    if origin is not None:
        return [_invented(arguments[0], name, filling)] * filling.size
    if annotation in VALUES:
        return VALUES[annotation]
    if annotation in (str, Any):
        choices = adapter.CHOICES.get(name)
        return field if choices is None or filling.choice is None else choices[filling.choice % len(choices)]
    if issubclass(annotation, BaseException):
        return OSError(field)
    types = {field: hint for field, hint in get_type_hints(annotation).items() if get_origin(hint) is not ClassVar}
    return annotation(**{field: _invented(types[field], f"{annotation.__name__}.{field}", filling) for field in types})


VALUES: dict[Any, Any] = {bool: True, datetime: datetime(2030, 1, 1, tzinfo=UTC), float: 0.5, int: 7}
