"""Checks rules that ruff and import-linter cannot check. Prints `file:line: rule: why` for each finding.

`make lint` runs this script. A rule is a function. For each line of a module that breaks the rule, it yields the line's
number, and the name or text that breaks the rule. The name of the function is the name of the rule, and its docstring
is the sentence that is printed. To add a rule, write the function, list it in `RULES`, and add a case to
`tests/test_lint.py`.
"""

import ast
import graphlib
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_skipqueue"
GLOSSARY = ROOT / "docs/reference/glossary.md"
ROOMS = ("benchmarks", "django_skipqueue", "example_project", "scripts", "tests")
CONTRIBUTORS_PAGES = ("docs/explanation/architecture.md", "docs/contributing/where-to-change.md")


@dataclass(frozen=True)
class Module:
    """A module of the package: its path within the package, its lines, and the nodes of its syntax tree."""

    path: str
    lines: list[str]
    body: list[ast.stmt]
    nodes: list[ast.AST]


Findings = Iterator[tuple[int, str]]
"""The numbers of the lines that break a rule, each with the name or text that breaks it, or an empty string."""


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
    """The words in the last column of the glossary, spelt as in an identifier. Words in italics are left out."""
    rows = re.findall(r"^\| \*\*\w+\*\* \|.*\| ([^|]*?) ?\|$", page, re.MULTILINE)
    words = {word.strip().replace(" ", "_") for row in rows for word in row.split(",") if word.strip()}
    return {word for word in words if not word.startswith("*")}


RULED_OUT = re.compile(f"_({'|'.join(sorted(ruled_out(GLOSSARY.read_text())))})_")


def in_words(name: str) -> str:
    """An identifier as words with an underscore around each: `_WorkerProcess` is `_worker_process_`."""
    return "_" + "_".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)).lower() + "_"


# Words


class Word(NamedTuple):
    """A row of the table: what some rooms must not contain, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str
    rooms: tuple[str, ...]
    not_in: tuple[str, ...]


def words(table: str) -> Iterator[Word]:
    read = tomllib.loads(table)
    for row in read["words"]:
        rooms, not_in = (
            tuple(path for name in row.get(key, ()) for path in read["rooms"].get(name, [name]))
            for key in ("rooms", "not_in")
        )
        yield Word(re.compile(row["pattern"]), row["instead"], rooms, not_in)


WORDS = list(words((ROOT / "scripts/words.toml").read_text()))


def word(path: str, text: str, table: Iterable[Word] = WORDS) -> Iterator[str]:
    """The table scripts/words.toml rules this out here."""
    rows = [row for row in table if path.startswith(row.rooms) and not path.startswith(row.not_in)]
    for number, line in enumerate(text.splitlines(), 1):
        for row in rows if not re.match(r"\s*(from|import)\s", line) else ():
            if found := row.pattern.search(line):
                yield finding_line(path, number, word, f"{found[0].strip()}: {row.instead}")


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

STATEMENT = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|EXPLAIN|LISTEN|UNLISTEN|NOTIFY|SET|BEGIN;"
    r"|(ALTER|LOCK|DROP|CREATE|REINDEX) (TABLE|INDEX))\s"
)
"""The beginning of a statement."""

PIECE = re.compile(r"\b(SELECT|UPDATE|WHERE|AND|RETURNING)\b")
"""A word that is written in capitals only in SQL, and in no other text of the package."""

RUNS_SQL = {"execute", "executemany", "raw", "RawSQL", "RunSQL", "copy", "stream", "mogrify", "SQL"}
"""Names of functions that send SQL. `SQL` is psycopg's template, into which only quoted identifiers and literals are
put."""

COMPOSERS = {
    *("joined", "entering", "returning", "_by_last_gate", "recording", "to_run", "guards", "recovering"),
    *("Condition", "PartColumns"),  # the pieces of SQL that a part adds to statements
    *("locking", "admitting_lone", "_keyed", "contesting", "swapping", "indented", "on_one_line", "distinct_keys_scan"),
    "_first_of_each",
}
"""Functions that may put SQL together, because they run when the module is imported.

`joined` puts pieces of SQL into a statement. The others make the pieces, or call `joined`.
"""

QUOTED = "STATEMENT_TIMES"
"""The one statement that is completed when it is run: a schema's name is put into it, which PostgreSQL has quoted."""

FRAGMENTS = re.compile(r"queue/fragments\.py|parts/\w+/columns\.py")
"""Files whose texts are never sent themselves, because they are pieces of the statements in other files."""


def statements(module: Module) -> Iterator[tuple[str, int, ast.expr]]:
    """The constants of the module that are SQL statements or pieces of them. Yields name, line and value of each."""
    for node in module.body if not module.path.startswith("migrations/") else ():
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name.isupper() and any(map(is_sql, ast.walk(value))):
                yield name, node.lineno, value


def is_sql(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return bool(STATEMENT.match(text) or PIECE.search(text))
        case ast.Call(func=ast.Name(id=name)):
            return name in COMPOSERS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="replace")):
            return name.isupper()
    return False


def known_statements(module: Module) -> dict[str, str]:
    """The names by which a module can use SQL statements, such as `CLAIM` or `sql.CLAIM`, each with its file."""
    known = {name: module.path for name, _, _ in statements(module)}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = Path(module.path).parents[node.level - 1] / (node.module or "").replace(".", "/")
            for alias in node.names:
                imported_as, submodule = alias.asname or alias.name, f"{base / alias.name}.py"
                known |= {f"{imported_as}.{name}": submodule for name in statements_of(submodule)}
                if alias.name in statements_of(f"{base}.py"):
                    known[imported_as] = f"{base}.py"
    return known


@cache
def statements_of(path: str) -> set[str]:
    """The names of the SQL statements in a file. Empty if there is no such file."""
    file = PACKAGE / path
    return {name for name, _, _ in statements(parse(path, file.read_text()))} if file.is_file() else set()


def spelt(node: ast.AST) -> str:
    """The source of a plain or dotted name, such as `CLAIM` or `sql.CLAIM`. Empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module_name), attr=name):
            return f"{module_name}.{name}"
    return ""


def statement_run(module: Module) -> Findings:
    """A statement is put together where it is run: it has to be a literal with a name."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            keyword_values = [keyword.value for keyword in node.keywords if keyword.arg in ("query", "sql")]
            queries = [*node.args[:1], *keyword_values]
            plain = ast.Constant | ast.Name | ast.Attribute | ast.Starred
            is_plain = all(isinstance(query, plain) for query in queries)
            if name == "extra" or (name in RUNS_SQL and not is_plain):
                yield node.lineno, name


def statement_made(module: Module) -> Findings:
    """Something is put into a statement, not at import by a composer: a value has to be a parameter."""
    known = known_statements(module)
    at_import = [value for _, _, value in statements(module)]
    composers = [node for node in module.nodes if isinstance(node, ast.FunctionDef) and node.name in COMPOSERS]
    allowed = {id(node) for root in (*at_import, *composers) for node in ast.walk(root)}
    for node in module.nodes:
        if id(node) in allowed:
            continue
        match node:
            case ast.JoinedStr(values=parts):
                pass
            case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
                parts = [left, right]
            case ast.Call(func=ast.Attribute(value=text, attr="format" | "join" | "replace"), args=args):
                parts = [text, *args]
            case ast.Call(func=ast.Name(id=name)) if name in COMPOSERS:
                yield node.lineno, name
                continue
            case _:
                continue
        if any(is_statement(part, known) for part in parts if spelt(part) != QUOTED):
            yield node.lineno, ""


def is_statement(node: ast.expr, known: Container[str]) -> bool:
    """Whether this expression is the text of an SQL statement, or the name of one."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(STATEMENT.match(text))
        case ast.FormattedValue(value=value):
            return is_statement(value, known)
    return spelt(node) in known


def statement_literal(module: Module) -> Findings:
    """A statement is neither a literal nor joined from literals when the module is imported."""
    for name, line, value in statements(module):
        if not is_literal(value):
            yield line, name


def is_literal(value: ast.expr) -> bool:
    """Whether this expression is a literal or a constant, or is made of nothing but literals and constants."""
    match value:
        case ast.Constant():
            return True
        case (
            ast.Name(id=name)
            | ast.FormattedValue(value=ast.Name(id=name))
            | ast.Starred(value=ast.Name(id=name))
            | ast.Subscript(value=ast.Name(id=name))
        ):
            return name.isupper()
        case ast.Lambda():
            return True
        case ast.JoinedStr(values=values) | ast.Dict(values=values) | ast.Tuple(elts=values):
            return all(map(is_literal, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in COMPOSERS:
            return all(map(is_literal, (*args, *(keyword.value for keyword in keywords))))
    return False


def statement_parameter(module: Module) -> Findings:
    """A parameter has no name: it has to be `%(name)s`."""
    for _, _, value in statements(module):
        yield from lines_with(r"%(?!\((\w+|{})\)s)", ast.walk(value))


def statement_status(module: Module) -> Findings:
    """A status is a parameter: a generic plan uses a partial index only with a literal."""
    yield from lines_with(r"status\s*(=|<>|IN)\s*\(?%", module.nodes)


def statement_session(module: Module) -> Findings:
    """A session lock does not work behind a pooler, and a trigger or a function hides what happens."""
    yield from lines_with(r"pg_(try_)?advisory_lock|CREATE (OR REPLACE )?(TRIGGER|FUNCTION)", module.nodes)


def lines_with(pattern: str, nodes: Iterable[ast.AST]) -> Findings:
    """The lines of the strings in these nodes that match the pattern, each with the text that matches."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text), lineno=line):
                if hit := re.search(pattern, text.replace("%%", "")):
                    yield line + text[: hit.start()].count("\n"), hit[0]


def statement_caller(module: Module) -> Findings:
    """The comment above `NAME` or `_NAME` does not begin with who sends the statement: "Sent by", "Part of"."""
    named = list(statements(module)) if not FRAGMENTS.fullmatch(module.path) else []
    explained = {name for name, line, _ in named if re.match("# (Sent|Part of) ", above(module, line))}
    for name, line, value in named:
        is_whole = is_statement(value, ()) or isinstance(value, ast.Call | ast.JoinedStr)
        if is_whole and name[0] != "_" and not {name, f"_{name}"} & explained:
            yield line, name


def above(module: Module, line: int) -> str:
    """The lines above this line, back to the last empty line."""
    return "\n".join([*module.lines[: line - 1], ""]).rpartition("\n\n")[2]


def statement_import(module: Module) -> Findings:
    """The statement of another room is used: a function of that room has to be called."""
    known = known_statements(module)
    for node in module.nodes:
        match node:
            case ast.Name() | ast.Attribute() if (name := spelt(node)) in known and not may_send(module, known[name]):
                yield node.lineno, name


def may_send(module: Module, file: str) -> bool:
    """Whether the module may use the statements in this file, because both are in the same room, or both use a store.

    Modules of the queue and of the parts use a store, and share its transactions. They may use each other's statements
    if they have statements of their own.
    """
    ours, theirs = Path(module.path).parts, Path(file).parts
    are_of_store = {ours[0], theirs[0]} <= {"queue", "parts"} and any(statements(module))
    return are_of_store or (ours[:2] == theirs[:2] if ours[0] == "parts" else ours[0] == theirs[0])


RULES: tuple[Callable[[Module], Findings], ...] = (
    glossary,
    made_code,
    statement_run,
    statement_made,
    statement_literal,
    statement_parameter,
    statement_status,
    statement_session,
    statement_caller,
    statement_import,
)


# Rules that need more than one module


SEAM = {"COLUMNS", "CONSOLE", "JOB_CONSTRAINTS", "JOB_INDEXES", "OPTIONS", "PART", "QUEUE_CONSTRAINTS"}
"""The constants by which each part gives something to the core."""


def constant_name(modules: Iterable[Module]) -> Iterator[str]:
    """Another module has a constant of this name: a name says of what."""
    homes: dict[str, str] = {}
    for module in modules:
        sql = {name for name, _, _ in statements(module)}
        for name, line in constants(module) if "migrations/" not in module.path else ():
            if name not in sql | SEAM and (home := homes.setdefault(name, module.path)) != module.path:
                yield finding_line(f"{PACKAGE.name}/{module.path}", line, constant_name, f"{name}, {home}")


def constants(module: Module) -> Iterator[tuple[str, int]]:
    """The constants that other modules may import. Not: one made of another module's constant of this name."""
    for node in module.body:
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=value):
                targets = [target]
            case _:
                continue
        made_of = {each.attr for each in ast.walk(value or ast.Pass()) if isinstance(each, ast.Attribute)}
        for name in (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
            if re.fullmatch(r"[A-Z][A-Z0-9_]+", name) and name not in made_of:
                yield name, node.lineno


DOCUMENTED = {"_base_manager", "_default_manager", "_exit", "_fields", "_make", "_meta", "_replace", "_state"}
"""Names of Python's and Django's documentation, in spite of the underscore."""


def private_names(modules: Iterable[Module]) -> set[str]:
    """The names with an underscore that the package gives to attributes, functions, classes and variables."""
    found: set[str] = set()
    for node in (node for module in modules for node in module.nodes):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                found.add(name)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
    return {name for name in found if re.match("_[^_]", name)} - DOCUMENTED


def private_use(path: str, tests: Module, private: Container[str]) -> Iterator[str]:
    """A test uses a private name of the package: a public name or a hook has to be there for it."""
    for node in tests.nodes:
        names: list[str] = []
        match node:
            case (
                ast.Attribute(value=ast.Name(id="self" | "cls")) | ast.Attribute(value=ast.Call(func=ast.Name("super")))
            ):
                pass  # the test's own class
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(module=str(module), names=imported, level=0) if module.startswith(PACKAGE.name):
                names = [alias.name for alias in imported]
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr" | "object"), args=[*_]):
                texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                names = [str(text).rpartition(".")[2] for text in texts]
        for name in names:
            if name in private:
                yield finding_line(path, node.lineno, private_use, name)  # type: ignore[attr-defined]


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
        yield finding_line(path, line, import_cycle, " ← ".join(error.args[1]))


def page_name(path: str, page: str) -> Iterator[str]:
    """The page names a module that does not exist."""
    for number, line in enumerate(page.splitlines(), 1):
        for name in re.findall(r"`(\w+(?:[./]\w+)+)`", line):
            path_of_name = name.removesuffix(".py").replace(".", "/")
            exists = any(
                (root / path_of_name).is_dir() or (root / f"{path_of_name}.py").is_file() for root in (PACKAGE, ROOT)
            )
            if not exists and not name.startswith(("django.", "RetryPolicy.", "sql.py")):
                yield finding_line(path, number, page_name, name)


BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

LIBRARIES = {"django", "django_skipqueue", *sys.stdlib_module_names}
"""Packages that a page must import. Other names without an import are from the reader's own project."""


def page_import(pages: Mapping[str, str]) -> Iterator[str]:
    """The page uses a name that no block of the page has imported before."""
    blocks_by_path = {path: list(python_blocks(page)) for path, page in pages.items()}
    library_names = {
        name for blocks in blocks_by_path.values() for _, nodes in blocks for name in imported_names(nodes)
    }
    for path, blocks in blocks_by_path.items():
        known: set[str] = set()
        for line, nodes in blocks:
            known.update(bound_names(nodes))
            for node in nodes:
                if isinstance(node, ast.Name) and node.id in library_names - known:
                    yield finding_line(path, line + node.lineno, page_import, node.id)


def python_blocks(page: str) -> Iterator[tuple[int, list[ast.AST]]]:
    """For each Python block of the page, the number of the line above it, and the nodes of its syntax tree."""
    for block in BLOCK.finditer(page):
        yield page[: block.start(1)].count("\n"), list(ast.walk(ast.parse(textwrap.dedent(block[1]))))


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes import from libraries."""
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in LIBRARIES:
                yield from (name.asname or name.name for name in names)
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in LIBRARIES)


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
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


def finding_line(path: str, line: int, rule: Callable[..., object], detail: str) -> str:
    """The line that is printed for a finding."""
    return f"{path}:{line}: {rule.__name__.replace('_', '-')}: {rule.__doc__}{f' ({detail})' if detail else ''}"


def main() -> int:
    findings: list[str] = []
    modules = [parse(str(path.relative_to(PACKAGE)), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    for module in modules:
        shown_path = f"{PACKAGE.name}/{module.path}"
        findings += [finding_line(shown_path, line, rule, detail) for rule in RULES for line, detail in rule(module)]
    findings += constant_name(modules)
    private = private_names(modules)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        findings += private_use(where, parse(where, path.read_text()), private)
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        findings += word(str(path.relative_to(ROOT)), path.read_text())
    findings += import_cycle(PACKAGE.name)
    for page in CONTRIBUTORS_PAGES:
        findings += page_name(page, (ROOT / page).read_text())
    pages = [*ROOT.glob("README.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    findings += page_import({str(page.relative_to(ROOT)): page.read_text() for page in pages})
    for finding in findings:
        print(finding)
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
