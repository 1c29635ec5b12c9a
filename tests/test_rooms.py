"""Imports run downwards only; no circle, no module over 350 lines, no function over 30."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_skipqueue

PACKAGE = Path(django_skipqueue.__file__).parent

# From the roof to the ground: a room may import what stands on a lower floor, and nothing on its own. A folder is one
# room, and so is a module beside the folders, each folder of the admin, and the statements of the store; a room orders
# its own modules.
FLOORS = (
    {"apps"},
    {"jobs", "management", "pytest_plugin", "templatetags"},
    {"admin", "backend", "checks", "opentelemetry", "prometheus", "routers", "sentry", "testing"},
    {"admin.archive", "sentry_monitors"},
    {"admin.jobs", "admin.workers", "management.skipqueue"},
    {"admin.dashboard"},
    {"admin.batches", "admin.limits", "admin.queues", "admin.schedules"},
    {"admin.bulk", "admin.failures", "management.demo", "management.maintenance"},
    {"admin.doctor", "admin.job_page", "management.terminal"},
    {"admin.verbs"},
    {"admin.health"},
    {"admin.charts", "admin.ui"},
    {"metrics"},
    {"doctor", "explanations", "indexes"},
    {"carriers", "steward"},
    {"carried", "operators", "running", "supervisor"},
    {"relay"},
    {"relay.rabbitmq"},
    {"relay.carrier"},
    {"services", "worker"},
    {"alerts", "claiming", "rollups"},
    {"runtime"},
    {"execution"},
    {"notes"},
    {"__init__"},
    {"periodic"},
    {"tasks"},
    {"arguments"},
    {"batches"},
    {"placement"},
    {"models"},
    {"store"},
    {"store.dependencies", "store.limits", "store.limits_now", "store.observe"},
    {"store.rates"},
    {"store.notify"},
    {"store.policy_sql", "store.parameters", "store.statements"},
    {"store.sql"},
    {"logging", "tracing"},
    {"admission", "job_names"},
    {"columns", "events"},
    {"conf"},
    {"setting_forms"},
    {"values"},
    {"backoff", "signals"},
    {"exceptions"},
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
    assert room_of(module) in ROOMS, "say here on which floor it stands"


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


def test_surfaces_are_imported_by_nothing_but_the_app_its_commands_and_its_task() -> None:
    surfaces = FLOORS[1] | FLOORS[2]
    for module in MODULES:
        surface = module.split(".")[0]
        for imported, line in imports(module):
            imported_surface = imported.split(".")[0]
            if imported_surface in surfaces and imported_surface != surface:
                assert surface in ("apps", *FLOORS[1]), f"{module}, line {line}: {imported}"


def test_only_the_store_knows_the_statements() -> None:
    users = {module for module in MODULES for imported, _ in imports(module) if imported.startswith("store.sql")}
    assert {room_of(user) for user in users} <= {
        "store",
        "store.notify",
        "store.observe",
        "store.policy_sql",
        "store.sql",
    }


def test_what_is_pure_imports_nothing_of_django() -> None:
    pure = [module for module in MODULES if room_of(module) in ("values", "backoff", "exceptions")]
    assert "values.outcomes" in pure
    for module in pure:
        tree = ast.parse(MODULES[module].read_text())
        named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [name for name in named if name.split(".")[0] in ("django", "psycopg")], module


def test_the_reader_of_imports_sees_what_is_local_and_not_what_is_for_types() -> None:
    found = {imported for imported, _ in imports("tasks.task")}
    assert "models" in found, "imported within a function"
    assert "models.querysets" not in found, "imported for types"
    assert {imported for imported, _ in imports("store.settle")} >= {"store.sql", "store.parameters", "values.records"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_is_long(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= 350


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_function_is_long(module: str) -> None:
    """30 lines, the docstring apart."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < 30, node.name


@pytest.mark.parametrize("room", sorted(ROOMS - {"__init__"}))
def test_no_room_is_large(room: str) -> None:
    modules = [path for name, path in MODULES.items() if room_of(name) == room]
    assert sum(len(path.read_text().splitlines()) for path in modules) < 2_000


def test_the_page_of_the_architecture_has_the_rooms_in_their_order() -> None:
    page = (PACKAGE.parent / "docs/explanation/architecture.md").read_text()
    table = page.partition("## Rooms")[2].partition("## Processes")[0]
    named = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert set(named) == ROOMS - {"__init__"}
    floors = [floor_of(room) for room in named]
    assert floors == sorted(floors)


def test_the_page_of_the_architecture_names_modules_that_exist() -> None:
    page = (PACKAGE.parent / "docs/explanation/architecture.md").read_text()
    for name in re.findall(r"`(\w+(?:\.\w+)+)`", page):
        assert name in MODULES or name.rpartition(".")[0] in ("django", "RetryPolicy") or name.endswith(".py"), name
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page):
        assert (PACKAGE / path).exists() or (PACKAGE.parent / path).exists(), path


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
