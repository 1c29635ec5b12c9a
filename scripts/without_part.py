#!/usr/bin/env python3
"""Proves that a part of the package can be removed: `python scripts/without_part.py alerts archive`.

For each part, the script copies the package, and the tests marked `core` with the modules that they import. It does not
copy the example project, the benchmarks and the other tests, which may use all parts. From the copy, it removes the
part and the parts that depend on it. To remove a part is to remove:

- the folder of the part, and each folder with its name in `templates/`, `static/` and `tests/`;
- its command, `management/commands/NAME.py`, and its tests, `test_NAME.py` and `test_NAME_….py`;
- its name in `parts/installed.py`;
- in the modules of `LISTS`, each import of the part, and the lines of a list that use the imported names.

The script fails if any other line names the part. Otherwise it makes the migration that drops the part's tables and
columns, migrates, and runs the tests marked `core`, mypy and import-linter in the copy. It uses the environment of the
Python that runs it, and the checkout's embedded PostgreSQL.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.embedded_postgres import Server  # noqa: E402
from scripts.with_postgres import shared_server  # noqa: E402

PARTS = Path("django_skipqueue/parts")

PROJECTS = ("benchmarks", "example_project")
"""The folders of projects that use the package. They are not copied."""

LISTS = (
    "django_skipqueue/__init__.py",
    "django_skipqueue/admin.py",
    "django_skipqueue/conf.py",
    "django_skipqueue/jobs/context.py",
    "django_skipqueue/jobs/options.py",
    "django_skipqueue/jobs/task_call.py",
    "django_skipqueue/models/__init__.py",
    "django_skipqueue/models/job.py",
    "django_skipqueue/models/managers.py",
    "django_skipqueue/models/queue.py",
)
"""The modules that may name a part. In each, one line imports something from the part, and one line of a list uses
it."""

LISTED = re.compile(r'\s*"[^"]*",\s*(#.*)?\s*')
"""A line in pyproject.toml that is nothing but one string of a list."""

REMOVALS = {"AlterUniqueTogether", "DeleteModel", "RemoveConstraint", "RemoveField", "RemoveIndex"}
"""The only operations that the migration without the part may have."""

CORE = re.compile(r"\bmark\.core\b")
"""The mark of a test, or of all tests in a module."""

FEWEST_TESTS = 40
"""How many tests marked `core` must pass at least."""


class NotRemovable(Exception):
    """A part cannot be removed. The message says why."""


# Removing a part


def with_dependants(tree: Path, part: str) -> list[str]:
    """The part, and all parts that depend on it, directly or indirectly."""
    dependencies = {path.parent.name: depends_of(path.read_text()) for path in (tree / PARTS).glob("*/part.py")}
    removed = [part]
    for name in removed:  # grows while it is read
        removed += [other for other, needed in dependencies.items() if name in needed and other not in removed]
    return removed


def depends_of(source: str) -> tuple[str, ...]:
    """The value of the argument `depends` in a part's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "depends":
            names: tuple[str, ...] = ast.literal_eval(node.value)
            return names
    return ()


def own_paths(paths: Iterable[Path], part: str, models: Container[str] = ()) -> Iterator[Path]:
    """The files that belong to the part. Folders in `templates/` may also have the name of one of the part's models."""
    for path in paths:
        match path.parts:
            case ("django_skipqueue", "parts", folder, *_) if folder == part:
                yield path
            case ("django_skipqueue", "management", "commands", file) if file == f"{part}.py":
                yield path
            case ("django_skipqueue", "templates" | "static", *folders, _) | ("tests", *folders, _) if part in folders:
                yield path
            case ("django_skipqueue", "templates", _, _, folder, _) if folder in models:
                yield path
            case ("tests", *_) if re.fullmatch(rf"test_{part}(_\w+)?\.py", path.name):
                yield path


def without_lines(source: str, part: str) -> str:
    """The source of a module without the lines that use the part.

    Raises `NotRemovable` if a line that uses the part is more than a name in a list.
    """
    import_line = rf"from (?:\.\.?parts|django_skipqueue\.parts)?\.{part}(?:\.\w+)* import (.+)"
    names = [
        name.rpartition(" as ")[2].strip()
        for line in source.splitlines()
        if (match := re.fullmatch(import_line, line))
        for name in match[1].split(",")
    ]
    kept = [line for line in source.splitlines(keepends=True) if not re.fullmatch(import_line, line.rstrip())]
    if not names:
        return source
    any_name = re.compile(rf"\b({'|'.join(names)})\b")
    for line in kept:
        if any_name.search(line) and not re.fullmatch(r"""\s*[*'"]*\w+(\.\w+)*['"]?,\s*""", line):
            raise NotRemovable(f"this line of a list is more than a name: {line.strip()}")
    return "".join(line for line in kept if not any_name.search(line))


def without_name(source: str, part: str) -> str:
    """The source of `parts/installed.py` without the part's line."""
    return source.replace(f'    "{part}",\n', "")


def without_contracts(source: str, part: str) -> str:
    """The text of pyproject.toml without the strings of import-linter's contracts that name the part."""
    named = re.compile(rf"\bdjango_skipqueue\.parts\.{part}\b")
    lines = source.splitlines(keepends=True)
    return "".join(line for line in lines if not (named.search(line) and LISTED.fullmatch(line)))


def leftovers(path: Path, source: str, part: str) -> Iterator[tuple[int, str]]:
    """The lines of a module that name the part in an import, or in a string with a dotted path."""
    for line, name in numbered_names(path, source):
        if f"{name}.".startswith(f"django_skipqueue.parts.{part}."):
            yield line, name


def numbered_names(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """The dotted paths that a module imports or has in a string, each with the number of its line."""
    package = path.parent.parts
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
                module = ".".join(filter(None, (base, node.module)))
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Constant(value=str(text)) if re.match(r"(django_skipqueue|tests)[\w.]+$", text):
                names = [text]
        yield from ((node.lineno, name) for name in names)  # type: ignore[attr-defined]


def remove(tree: Path, part: str) -> None:
    """Remove the part from the copy. Raises `NotRemovable` if some lines still name the part."""
    for path in list(own_paths(files_of(tree), part, models_of(tree, part))):
        (tree / path).unlink()
    installed = tree / PARTS / "installed.py"
    rewrite(installed, without_name(installed.read_text(), part))
    for name in LISTS:
        rewrite(tree / name, without_lines((tree / name).read_text(), part))
    rewrite(tree / "pyproject.toml", without_contracts((tree / "pyproject.toml").read_text(), part))
    lines_left = lines_with(tree / "pyproject.toml", rf"\.parts\.{part}\b")
    problems = [f"pyproject.toml: {line.strip()}" for line in lines_left]
    for path in files_of(tree):
        if path.suffix == ".py" and part in (source := (tree / path).read_text()):
            problems += [f"{path}:{line}: {name}" for line, name in leftovers(path, source, part)]
        elif path.suffix == ".html":
            problems += [f"{path}: {line.strip()}" for line in lines_with(tree / path, rf"django_skipqueue/{part}/")]
    if problems:
        raise NotRemovable("\n".join(["these lines still name the part:", *problems]))


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def lines_with(path: Path, pattern: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if re.search(pattern, line)]


def files_of(tree: Path) -> list[Path]:
    return sorted(path.relative_to(tree) for path in tree.rglob("*") if path.is_file() and not path.is_symlink())


# The copy of the package


def copy_tree(tree: Path) -> None:
    """Copy the files that git tracks or would add, except for projects, and tests that the core tests do not need."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in filter(None, listed.split("\0")) if (ROOT / name).is_file()]
    needed = needed_by_core(ROOT, {Path(name) for name in names if name.startswith("tests/")})
    for name in names:
        path = Path(name)
        if path.parts[0] in PROJECTS or (path.suffix == ".py" and path.parts[0] == "tests" and path not in needed):
            continue
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)
    settings = tree / "tests/settings.py"
    rewrite(settings, re.sub(r'    "payments",.*\n', "", settings.read_text()))
    pyproject = tree / "pyproject.toml"
    rewrite(pyproject, pyproject.read_text().replace('"tests.typing_settings"', '"tests.settings"'))


def needed_by_core(root: Path, tests: set[Path]) -> set[Path]:
    """The modules with tests marked `core`, and all test modules that these import or name in a string."""
    sources = {path: (root / path).read_text() for path in tests if path.suffix == ".py"}
    remaining = [path for path, source in sources.items() if CORE.search(source)]
    remaining += [
        Path("tests/settings.py"),
        Path("tests/app/apps.py"),
        Path("tests/app/jobs.py"),
        Path("tests/app/models.py"),
    ]
    needed: set[Path] = set()
    while remaining:
        path = remaining.pop()
        if path in needed or path not in sources:
            continue
        needed.add(path)
        remaining += [parent / name for parent in path.parents for name in ("__init__.py", "conftest.py")]
        for _, name in numbered_names(path, sources[path]):
            module = name.replace(".", "/")
            remaining += [Path(f"{module}.py"), Path(f"{module.rpartition('/')[0]}.py"), Path(module, "__init__.py")]
    return needed | {path for path in sources if path.parent.name == "migrations"}


class Copy:
    """Runs commands in a copy of the package."""

    def __init__(self, tree: Path, url: str) -> None:
        self.tree = tree
        self._environment = os.environ | {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, title: str, *command: str) -> str:
        """Run a Python program, print how long it took, and return its output. Raises `NotRemovable` if it fails."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command], cwd=self.tree, env=self._environment, capture_output=True, text=True
        )
        say(title, started)
        if done.returncode:
            raise NotRemovable(f"{title} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def check_migration(self, *, is_needed: bool) -> None:
        """Check that the new migration only removes things. Raises `NotRemovable` if not, or if it is missing."""
        folder = self.tree / "django_skipqueue/migrations"
        known = {path.name for path in (ROOT / "django_skipqueue/migrations").iterdir()}
        new_migrations = [path for path in folder.glob("0*.py") if path.name not in known]
        operations = [
            node.func.attr
            for path in new_migrations
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]
        if wrong := set(operations) - REMOVALS:
            raise NotRemovable(f"the migration does more than remove: {', '.join(sorted(wrong))}")
        if is_needed and not new_migrations:
            raise NotRemovable("no migration drops the tables and columns of the part")
        print(f"    {', '.join(operations) or 'no migration is needed'}")

    def check_tables(self, tables: list[str]) -> None:
        """Check that none of these tables is left. Raises `NotRemovable` otherwise."""
        with psycopg.connect(self._environment["DATABASE_URL"]) as connection:
            rows = connection.execute("SELECT relname FROM pg_class WHERE relname = ANY (%s)", [tables]).fetchall()
        if rows:
            raise NotRemovable(f"after migrate there still are {', '.join(name for (name,) in rows)}")

    def run_core_tests(self) -> None:
        files = [str(path) for path in files_of(self.tree) if path.parts[0] == "tests" and path.suffix == ".py"]
        marked = [name for name in files if CORE.search((self.tree / name).read_text())]
        if not marked:
            raise NotRemovable("no test is marked core")
        options = ("-q", "-m", "core", "-n", "2", "-p", "no:cacheprovider")
        output = self.run("tests marked core", "-m", "pytest", *options, *marked)
        passed = re.search(r"(\d+) passed", output)
        if passed is None or int(passed[1]) < FEWEST_TESTS:
            raise NotRemovable(f"fewer than {FEWEST_TESTS} tests are marked core:\n{output}")
        print(f"    {output.strip().splitlines()[-1]}")


def tables_of(tree: Path, part: str) -> list[str]:
    """The names of the part's database tables."""
    models = tree / PARTS / part / "models.py"
    return re.findall(r'db_table = "(\w+)"', models.read_text()) if models.exists() else []


def models_of(tree: Path, part: str) -> list[str]:
    """The names of the part's models, in lower case."""
    models = tree / PARTS / part / "models.py"
    names = re.findall(r"^class (\w+)\(", models.read_text(), re.MULTILINE) if models.exists() else []
    return [name.lower() for name in names]


def say(what: str, started: float) -> None:
    print(f"  {what}: {time.monotonic() - started:.1f} s", flush=True)


# The proof


def prove(part: str, server: Server) -> None:
    """Remove the part from a copy, and run all checks there. Raises `NotRemovable` if one of them fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="without-part-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if not (tree / PARTS / part).is_dir():
            raise NotRemovable(f"there is no folder {PARTS / part}")
        parts = with_dependants(tree, part)
        print(f"without {' and '.join(parts)}")
        tables = [table for name in parts for table in tables_of(tree, name)]
        has_models = any((tree / PARTS / name / "models.py").exists() for name in parts)
        for name in reversed(parts):
            remove(tree, name)
        say("copy and remove", started)
        database = f"without_{part}"
        drop_database(server, database)
        try:
            run_all(Copy(tree, server.create_database(database)), tables, has_models=has_models)
        finally:
            drop_database(server, database)
    say("all", started)


def run_all(copy: Copy, tables: list[str], *, has_models: bool) -> None:
    imported_path = copy.run("import", "-c", "import django_skipqueue; print(django_skipqueue.__file__)")
    if not imported_path.startswith(str(copy.tree)):
        raise NotRemovable(f"the copy is not what is imported, but {imported_path}")
    command = ("-m", "mypy", "--cache-dir", os.devnull, "django_skipqueue", "tests")
    with ThreadPoolExecutor() as pool:
        mypy_output = pool.submit(copy.run, "mypy", *command)
        run_other_checks(copy, tables, has_models=has_models)
        print(f"    {mypy_output.result().strip()}")


def run_other_checks(copy: Copy, tables: list[str], *, has_models: bool) -> None:
    imports = copy.run("import-linter", str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    print(f"    {imports.strip().splitlines()[-1]}")
    copy.run("makemigrations", "-m", "django", "makemigrations", "django_skipqueue", "--no-input")
    copy.check_migration(is_needed=has_models)
    copy.run("migrate", "-m", "django", "migrate", "--no-input", "--verbosity", "0")
    copy.check_tables(tables)
    copy.run_core_tests()


def drop_database(server: Server, database: str) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)'.encode())


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove that parts can be removed.")
    parser.add_argument("parts", nargs="+", metavar="NAME")
    parts = parser.parse_args().parts
    server = Server(ROOT / ".postgres")
    failed = 0
    with shared_server(server):
        for part in parts:
            try:
                prove(part, server)
            except NotRemovable as error:
                failed += 1
                print(f"The part {part} cannot be removed: {error}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
