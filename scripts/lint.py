"""Check the package for what ruff and import-linter cannot see. Print `file:line: rule: why` for each finding.

`make lint` runs this. A rule is a function that yields the lines of a module on which the rule is broken, each with the
name or the text that breaks it. The name of the function is the name of the rule, and its docstring is the sentence
that a finding prints. To add a rule, write the function, list it in `RULES`, and add its case to `tests/test_lint.py`.
"""

import ast
import graphlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_skipqueue"
GLOSSARY = ROOT / "docs/reference/glossary.md"
CONTRIBUTORS_PAGES = ("docs/explanation/architecture.md", "docs/contributing/where-to-change.md")


@dataclass(frozen=True)
class Module:
    """A module of the package: its path below the package's folder, its lines, and the nodes of its syntax tree."""

    path: str
    lines: list[str]
    body: list[ast.stmt]
    nodes: list[ast.AST]


Findings = Iterator[tuple[int, str]]
"""The lines on which a rule is broken, each with the name that breaks it, or with an empty string."""


def parse(path: str, text: str) -> Module:
    tree = ast.parse(text)
    return Module(path, text.splitlines(), tree.body, list(ast.walk(tree)))


# Names


def glossary(module: Module) -> Findings:
    """The glossary rules out a word of the name."""
    for node in module.nodes:
        match node:
            case (
                ast.FunctionDef(name=name, lineno=line)
                | ast.AsyncFunctionDef(name=name, lineno=line)
                | ast.ClassDef(name=name, lineno=line)
                | ast.arg(arg=name, lineno=line)
                | ast.Name(id=name, ctx=ast.Store(), lineno=line)
                | ast.Attribute(attr=name, ctx=ast.Store(), lineno=line)
            ) if RULED_OUT.search(in_words(name)):
                yield line, name


def ruled_out(page: str) -> set[str]:
    """The words of the glossary's last column, as they are spelt in an identifier; without the words in italics."""
    rows = re.findall(r"^\| \*\*\w+\*\* \|.*\| ([^|]*?) ?\|$", page, re.MULTILINE)
    words = {word.strip().replace(" ", "_") for row in rows for word in row.split(",") if word.strip()}
    return {word for word in words if not word.startswith("*")}


RULED_OUT = re.compile(f"_({'|'.join(sorted(ruled_out(GLOSSARY.read_text())))})_")


def in_words(name: str) -> str:
    """An identifier as words with an underscore around each: `_WorkerProcess` is `_worker_process_`."""
    return "_" + "_".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)).lower() + "_"


# Code that is made from text


def made_code(module: Module) -> Findings:
    """Text becomes code, or a command of a shell."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id="compile" | "__import__" as name), lineno=line):
                yield line, name
            case ast.keyword(arg="shell", lineno=line):
                yield line, "shell"


# Statements

STATEMENT = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|ALTER TABLE|LISTEN|NOTIFY|WITH)\s")

RUNS_SQL = {"execute", "executemany", "raw", "RawSQL", "RunSQL", "copy", "stream", "mogrify", "SQL"}
"""`SQL` is psycopg's: a template, into which only identifiers and literals are put, each of them quoted."""

COMPOSERS = {"entering", "of_carrier", "recording", "to_run", "of_permits", "of_tokens", "SETTLE.replace"}
"""They put literals into a literal, when the module is imported."""

HOLDS_COMPOSERS = re.compile(r"store/sql/(__init__|carried|gates|operations|to_run)\.py")
HOLDS_STATEMENTS = re.compile(r"store/sql/|(?!migrations/).*sql\.py$")


def statement_run(module: Module) -> Findings:
    """A statement is put together where it is run: it has to be a literal with a name."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg in ("query", "sql"))]
            is_plain = all(isinstance(each, ast.Constant | ast.Name | ast.Attribute | ast.Starred) for each in given)
            if name == "extra" or (name in RUNS_SQL and not is_plain):
                yield node.lineno, name


def statement_made(module: Module) -> Findings:
    """Something is put into a statement: a value has to be a parameter."""
    for node in module.nodes:
        match node:
            case ast.JoinedStr(values=parts):
                pass
            case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
                parts = [left, right]
            case ast.Call(func=ast.Attribute(value=text, attr="format" | "join" | "replace"), args=args):
                parts = [text, *args]
            case _:
                continue
        if any(map(is_statement, parts)):
            yield node.lineno, ""


def is_statement(node: ast.expr) -> bool:
    """Whether this is the text of a statement, or a statement of a module `sql`."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(STATEMENT.match(text))
        case ast.FormattedValue(value=value):
            return is_statement(value)
        case ast.Attribute(value=ast.Name(id="sql")):
            return True
    return False


def statement_file(module: Module) -> Findings:
    """A file of statements holds something else than literals."""
    for node in module.body if holds_statements(module) else ():
        match node:
            case ast.Assign(value=value) if is_literal(value):
                pass
            case ast.ImportFrom(names=names) if {alias.name for alias in names} <= COMPOSERS:
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                yield node.lineno, ""


def holds_statements(module: Module) -> bool:
    """Whether this is a file of the store's statements, or of a feature's: `sql.py`, `load_sql.py`."""
    return bool(HOLDS_STATEMENTS.match(module.path)) and not HOLDS_COMPOSERS.match(module.path)


def is_literal(value: ast.expr) -> bool:
    """Whether this is a literal, a constant, or a literal into which literals and constants are put."""
    match value:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.FormattedValue(value=ast.Name(id=name)):
            return name.isupper()
        case ast.JoinedStr(values=values) | ast.Dict(values=values):
            return all(map(is_literal, values))
        case ast.Call(func=func, args=args, keywords=keywords):
            return ast.unparse(func) in COMPOSERS and all(map(is_literal, (*args, *(each.value for each in keywords))))
    return False


def statement_parameter(module: Module) -> Findings:
    """A parameter has no name: it has to be `%(name)s`."""
    for node in module.body if holds_statements(module) else ():
        if isinstance(node, ast.Assign):
            yield from lines_with(r"%(?!\((\w+|{})\)s)", ast.walk(node.value))


def statement_status(module: Module) -> Findings:
    """A status is a parameter: a generic plan uses a partial index only with a literal."""
    yield from lines_with(r"status\s*(=|<>|IN)\s*\(?%", module.nodes)


def statement_session(module: Module) -> Findings:
    """A session lock does not work behind a pooler, and a trigger or a function hides what happens."""
    yield from lines_with(r"pg_(try_)?advisory_lock|CREATE (OR REPLACE )?(TRIGGER|FUNCTION)", module.nodes)


def lines_with(pattern: str, nodes: Iterable[ast.AST]) -> Findings:
    """The strings among the nodes in which the pattern is found."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text), lineno=line):
                if found := re.search(pattern, text.replace("%%", "")):
                    yield line + text[: found.start()].count("\n"), found[0]


def statement_caller(module: Module) -> Findings:
    """The comment above the statement does not say who calls it and what it returns, as in "callers → rows"."""
    is_read = holds_statements(module) or module.path.startswith("store/policy_sql/")
    for node in module.body if is_read else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], lineno=line) if name.isupper() and name[0] != "_":
                above = "\n".join([*module.lines[: line - 1], ""]).rpartition("\n\n")[2]
                if name not in ("LISTEN_AS_SUPERVISOR", "NOTIFY") and not re.match(r"# [^→:]*[→:]", above):
                    yield line, name


def statement_import(module: Module) -> Findings:
    """The statements of another room are imported: its methods have to be called."""
    folder = Path(module.path).parent
    if folder.name in ("store", "policy_sql") or (PACKAGE / folder / "sql.py").exists():
        return
    for node in module.nodes:
        match node:
            case ast.ImportFrom(module=name, names=names, level=1 | 2 | 3 | 4, lineno=line):
                if "sql" in ((name or "").rpartition(".")[2], *(alias.name for alias in names)):
                    yield line, ""


RULES: tuple[Callable[[Module], Findings], ...] = (
    glossary,
    made_code,
    statement_run,
    statement_made,
    statement_file,
    statement_parameter,
    statement_status,
    statement_session,
    statement_caller,
    statement_import,
)


# What one module does not show


def import_cycle(package: str) -> Iterator[str]:
    """Imports go in a circle."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        imported, importer, *_ = error.args[1]
        line = graph.get_import_details(importer=importer, imported=imported)[0]["line_number"]
        path = importer.replace(".", "/") + ("/__init__.py" if graph.find_children(importer) else ".py")
        yield told(path, line, import_cycle, " ← ".join(error.args[1]))


def page_name(path: str, page: str) -> Iterator[str]:
    """The page names a module that does not exist."""
    for number, line in enumerate(page.splitlines(), 1):
        for name in re.findall(r"`(\w+(?:[./]\w+)+)`", line):
            place = name.removesuffix(".py").replace(".", "/")
            exists = [root for root in (PACKAGE, ROOT) if (root / place).is_dir() or (root / f"{place}.py").is_file()]
            if not exists and not name.startswith(("django.", "RetryPolicy.", "sql.py")):
                yield told(path, number, page_name, name)


BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

LIBRARIES = {"django", "django_skipqueue", *sys.stdlib_module_names}
"""What readers import. Other names without an import are those of the reader's own project."""


def page_import(pages: Mapping[str, str]) -> Iterator[str]:
    """The page uses a name that no block of the page has imported before."""
    blocks = {path: list(python_blocks(page)) for path, page in pages.items()}
    of_libraries = {name for found in blocks.values() for _, nodes in found for name in imported(nodes)}
    for path, found in blocks.items():
        known: set[str] = set()
        for line, nodes in found:
            known.update(bound(nodes))
            for node in nodes:
                if isinstance(node, ast.Name) and node.id in of_libraries - known:
                    yield told(path, line + node.lineno, page_import, node.id)


def python_blocks(page: str) -> Iterator[tuple[int, list[ast.AST]]]:
    """The line above each block, and the nodes of its syntax tree."""
    for block in BLOCK.finditer(page):
        yield page[: block.start(1)].count("\n"), list(ast.walk(ast.parse(textwrap.dedent(block[1]))))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes import from libraries."""
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in LIBRARIES:
                yield from (name.asname or name.name for name in names)
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in LIBRARIES)


def bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes import, define, take as arguments or assign."""
    for node in nodes:
        match node:
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                yield from ((name.asname or name.name).partition(".")[0] for name in names)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                yield name


def told(path: str, line: int, rule: Callable[..., object], detail: str) -> str:
    """A finding as it is printed."""
    return f"{path}:{line}: {rule.__name__.replace('_', '-')}: {rule.__doc__}{f' ({detail})' if detail else ''}"


def main() -> int:
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = parse(str(path.relative_to(PACKAGE)), path.read_text())
        where = str(path.relative_to(ROOT))
        found += [told(where, line, rule, detail) for rule in RULES for line, detail in rule(module)]
    found += import_cycle(PACKAGE.name)
    for page in CONTRIBUTORS_PAGES:
        found += page_name(page, (ROOT / page).read_text())
    pages = [*ROOT.glob("README.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    found += page_import({str(page.relative_to(ROOT)): page.read_text() for page in pages})
    for finding in found:
        print(finding)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
