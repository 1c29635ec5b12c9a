"""Imports run downwards only; the order of the rooms is the one that the design gives them."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_skipqueue

PACKAGE = Path(django_skipqueue.__file__).parent

# From the roof to the ground: a module may import what stands on a lower floor, and nothing on its own. A package that
# is one room (`admin`, `managers`) is on one floor, and orders its own modules.
FLOORS = (
    {"apps"},
    {"management", "templatetags"},
    {"admin", "backend", "checks", "metrics", "testing"},
    {"running", "worker.supervisor"},
    {"worker.dead_workers", "worker.watchdog"},
    {"worker.maintenance", "worker.slots"},
    {"worker.worker"},
    {"worker.holdings", "worker.own_row", "worker.recycling"},
    {"worker.exchanging"},
    {"worker.claiming", "worker.outbox"},
    {"worker.places", "worker.reports", "worker.slow_outcomes"},
    {
        "worker.announcer",
        "worker.control",
        "worker.frontier",
        "worker.kinds",
        "worker.lookahead",
        "worker.options",
        "worker.portion",
        "worker.revocations",
        "worker.strays",
    },
    {"worker.pool"},
    {"worker.event_loop", "worker.threads", "worker.wakeup"},
    {"worker.connections", "worker.executor"},
    {
        "worker.call_threads",
        "worker.children",
        "worker.limits",
        "worker.log_queue",
        "worker.memory",
        "worker.observing",
        "worker.protocol",
        "worker.stamps",
        "worker.started",
    },
    {"worker"},
    {"__init__"},
    {"decorator"},
    {"tasks"},
    {"context", "pruning", "registry"},
    {"models"},
    {"managers"},
    {"liveness_logs"},
    {"logs", "options", "preflight"},
    {"records", "databases"},
    {"outcomes"},
    {"advice"},
    {"sql", "payload", "backoff", "conf", "signals"},
    {"database_advice"},
    {"exceptions", "json_advice", "log_format", "redaction", "tracebacks"},
)
ROOMS = {room for floor in FLOORS for room in floor}


def modules() -> dict[str, Path]:
    """The modules of the package by name, without those that hold no code of ours."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        if parts[0] != "migrations":
            found[name] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """Where a module stands: itself, or the package that is one room."""
    parts = module.split(".")
    return next(
        (".".join(parts[:length]) for length in range(len(parts), 0, -1) if ".".join(parts[:length]) in ROOMS), module
    )


def imports(module: str) -> Iterator[tuple[str, int]]:
    """The package's own modules that a module imports, at its top or within a function, with the line."""
    for node in without_type_checking(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE.name:
                    yield alias.name.partition(".")[2] or "__init__", node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = base_of(module, node)
            if base is not None:
                for alias in node.names:
                    name = ".".join([*base, alias.name])
                    yield name if name in MODULES else ".".join(base) or "__init__", node.lineno


def base_of(module: str, node: ast.ImportFrom) -> list[str] | None:
    """The parts of the module that `from … import` names, within the package; None for a module that is not ours."""
    named = node.module.split(".") if node.module else []
    if not node.level:
        return named[1:] if named[:1] == [PACKAGE.name] else None
    parts = [] if module == "__init__" else module.split(".")
    if MODULES[module].name != "__init__.py":
        parts = parts[:-1]
    above = node.level - 1
    return [*(parts[:-above] if above else parts), *named]


def without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from without_type_checking(other)
            continue
        yield node
        yield from without_type_checking(node)


def floor_of(module: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if room_of(module) in floor)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_has_its_place(module: str) -> None:
    assert room_of(module) in ROOMS, "say in the design, and here, on which floor it stands"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_downwards(module: str) -> None:
    upwards = [
        f"line {line}: {imported}"
        for imported, line in imports(module)
        if room_of(imported) != room_of(module) and floor_of(imported) <= floor_of(module)
    ]
    assert not upwards, f"{module} imports what does not stand below it"


def test_no_import_goes_in_a_circle_within_a_room_either() -> None:
    graph = {module: {imported for imported, _ in imports(module)} - {module} for module in MODULES}
    assert tuple(graphlib.TopologicalSorter(graph).static_order())


def test_surfaces_are_imported_by_nothing_but_the_app_and_their_commands() -> None:
    surfaces = FLOORS[1] | FLOORS[2]
    for module in MODULES:
        for imported, line in imports(module):
            if room_of(imported) in surfaces and room_of(imported) != room_of(module):
                assert room_of(module) in ("apps", "management", "templatetags"), f"{module}, line {line}: {imported}"


def test_only_the_managers_know_the_statements() -> None:
    users = {module for module in MODULES for imported, _ in imports(module) if imported == "sql"}
    assert {room_of(user) for user in users} == {"managers"}


def test_what_is_pure_imports_nothing_of_django() -> None:
    for module in ("backoff", "outcomes", "payload", "records", "redaction", "sql", "exceptions"):
        tree = ast.parse(MODULES[module].read_text())
        named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [name for name in named if name.split(".")[0] in ("django", "psycopg")], module


def test_the_reader_of_imports_sees_what_is_local_and_not_what_is_for_types() -> None:
    found = {imported for imported, _ in imports("tasks")}
    assert "models" in found, "imported within a function"
    assert "managers" not in found, "imported for types"
    assert {imported for imported, _ in imports("managers.settling")} >= {"sql", "managers.batches", "records"}


def test_importing_the_package_loads_no_model_and_needs_no_settings() -> None:
    script = (
        "import sys, django_skipqueue; from django.conf import settings; "
        "from django_skipqueue import Discard, JobContext, Retry, Snooze, Task, job; "
        "assert not settings.configured; assert not [m for m in sys.modules if m.endswith('.models')], sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_what_users_import_is_listed() -> None:
    assert set(django_skipqueue.__all__) >= {"Discard", "JobContext", "Retry", "Snooze", "Task", "job"}
    for name in django_skipqueue.__all__:
        assert getattr(django_skipqueue, name)
