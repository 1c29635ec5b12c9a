"""The golden file of SQL, `statements.sql`: every statement of the package, as a reviewer reads it."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

from django_skipqueue import parts
from django_skipqueue.console import periods, search_indexes
from django_skipqueue.console.admin import dashboard
from django_skipqueue.console.cli import indexes
from django_skipqueue.console.metrics import catalogue
from django_skipqueue.console.rules import jobs_and_workers, locks, rule, server, tables
from django_skipqueue.contrib.celery import console as of_carriers

from .statements import FIRST_WORD, MODULES

FILE = Path(__file__).with_name("statements.sql")


def _modules_of_parts() -> Iterator[ModuleType]:
    """Every module of every part, in reverse alphabetical order."""
    module_infos = walk_packages(parts.__path__, f"{parts.__name__}.")
    yield from (import_module(name) for name in sorted((module.name for module in module_infos), reverse=True))


ALL_MODULES: tuple[ModuleType, ...] = (
    *MODULES,
    of_carriers,
    *(module for module in _modules_of_parts() if module not in MODULES),
    *(jobs_and_workers, locks, server, tables, rule, catalogue, dashboard, indexes, periods, search_indexes),
)

MAINTENANCE = r"\s*(CREATE|DROP|REINDEX) "
"""The first words of statements such as CREATE INDEX, which `STATEMENTS` leaves out."""

NAME_LINE = re.compile(r"^-- (\w+ \([\w.]+\))\n", re.MULTILINE)

FILLED_BY_THE_CONSOLE = {"argument", "index", "limit", "place", "schema", "task", "value"}
"""Names in braces for which the console inserts a quoted text when it sends a statement."""

HEAD = """\
-- Every statement of the package as Python has it, without blank lines around it. A test compares this file, and
-- `make contract` writes it. A pipeline, ENQUEUE_AND_NOTIFY and ENQUEUE_AND_ADMIT are sent without indentation.
-- `%(name)s` is a value. The console quotes what is in braces when it sends a statement.
"""


def statements() -> dict[str, str]:
    """Every statement by its name and module, in the order of the modules and of their lines."""
    return {
        f"{name} ({module.__name__.partition('.')[2]})": text
        for module in ALL_MODULES
        for name, text in statements_of(module)
    }


def content_of_file(text_by_name: dict[str, str]) -> str:
    """The content of the file."""
    return HEAD + "".join(f"\n-- {name}\n{text.strip()}\n" for name, text in text_by_name.items())


def statements_in(content: str) -> dict[str, str]:
    """The statements of the file's content, by name and module."""
    _head, *names_and_texts = NAME_LINE.split(content)
    return {name: text.strip() for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)}


def statements_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The statements that the module defines, without statements that it imports from other modules."""
    targets = re.findall(r"^([A-Z][\w, ]*)(?:: .*)? = ", inspect.getsource(module), re.MULTILINE)
    assigned = {name for target in targets for name in target.split(", ")}
    for name, text in vars(module).items():
        is_statement = isinstance(text, str) and re.match(f"{FIRST_WORD}|{MAINTENANCE}", text)
        if name in assigned and name.isupper() and is_statement:
            yield name, text
