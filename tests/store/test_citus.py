"""Citus takes the statements in a distributed schema, as far as its planner's rules on functions go.

Citus is in no package that the tests could install. So the rules are applied to the tree that PostgreSQL makes of each
statement. Citus 14 (`multi_router_planner.c`) demands of a statement that writes:

- an UPDATE or a DELETE has no VOLATILE function anywhere;
- what an UPDATE sets, and its conditions, give no column to a STABLE function, and have none in a CASE or a COALESCE;
- RETURNING, and all of ON CONFLICT, have IMMUTABLE functions alone;
- within an UPDATE or a DELETE there is no INSERT, and no subquery in an INSERT of VALUES.

The second rule does not look into a subquery, and no rule looks behind the name of a common table expression. A
subquery of FROM is no shelter if PostgreSQL can merge it into the statement, which it does before Citus looks.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import psycopg
import pytest

import django_skipqueue

from ..app.sessions import connect

Node = dict[str, Any]

WRITES = re.compile("(INSERT INTO|UPDATE|DELETE FROM) skipqueue_")
MODULES = {
    module.name.removeprefix("django_skipqueue.")
    for module in walk_packages(django_skipqueue.__path__, "django_skipqueue.")
    if re.search(r"sql(\.|$)", module.name) and not module.ispkg
}
TEXTS: dict[str, str] = {
    f"{module} {name} {number}".removesuffix(" 0"): text
    for module in sorted(MODULES)
    for name, whole in vars(import_module(f"django_skipqueue.{module}")).items()
    if name.isupper() and not name.startswith("_") and isinstance(whole, str)
    for number, text in enumerate(whole.split(";") if "BEGIN;" in whole else [whole])
    if WRITES.search(text)
}
"""The statements that write. Of several statements in one, each is there with its number."""

REFUSED = {
    "store.sql.enqueue ENQUEUE_AND_NOTIFY 1",
    "store.policy_sql.enqueue_limited ENQUEUE_AND_ADMIT 1",
    "store.policy_sql.enqueue_limited ENQUEUE_AND_ADMIT 5",
}
"""Of `.defer()` outside of a transaction: in another form, its INSERT would take 7 % longer."""


def test_no_other_module_has_statements_that_write() -> None:
    package = Path(django_skipqueue.__path__[0])
    found = {path.relative_to(package) for path in package.rglob("*.py") if WRITES.search(path.read_text())}
    writing = {".".join(path.with_suffix("").parts) for path in found if path.parts[0] != "migrations"}
    assert writing - MODULES == set()


@pytest.mark.django_db
@pytest.mark.parametrize("name", TEXTS)
def test_citus_takes_every_statement_that_writes_but_those_of_a_defer_alone(name: str) -> None:
    with connect() as connection:
        assert bool(list(refusals(connection, TEXTS[name]))) == (name in REFUSED)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("UPDATE skipqueue_job SET result = to_jsonb(random())", "VOLATILE"),
        ("WITH x AS (SELECT clock_timestamp() AS at) UPDATE skipqueue_job SET run_after = at FROM x", "VOLATILE"),
        ("DELETE FROM skipqueue_job WHERE random() > 0.5", "VOLATILE"),
        ("WITH x AS (DELETE FROM skipqueue_job WHERE random() > 0.5 RETURNING id) SELECT id FROM x", "VOLATILE"),
        ("UPDATE skipqueue_job SET run_after = run_after + interval '1 s'", "columns"),
        ("UPDATE skipqueue_job SET result = to_jsonb(task)", "columns"),
        ("UPDATE skipqueue_job SET result = task::jsonb", None),
        ("UPDATE skipqueue_job SET result = (SELECT to_jsonb(task))", None),
        ("UPDATE skipqueue_job SET task = 'x' WHERE run_after < locked_at + interval '1 s'", "columns"),
        ("UPDATE skipqueue_job SET task = 'x' WHERE run_after < statement_timestamp() - interval '1 s'", None),
        ("UPDATE skipqueue_job SET run_after = COALESCE(locked_at, statement_timestamp())", "CASE or COALESCE"),
        ("UPDATE skipqueue_job SET run_after = CASE WHEN priority > 1 THEN now() ELSE run_after END", "CASE"),
        ("UPDATE skipqueue_job SET run_after = COALESCE(run_after, (SELECT now()))", "CASE or COALESCE"),
        ("UPDATE skipqueue_job SET run_after = COALESCE(x.at) FROM (SELECT now() AS at) AS x", "CASE or COALESCE"),
        ("UPDATE skipqueue_job SET run_after = COALESCE(x.at) FROM (SELECT now() AS at OFFSET 0) AS x", None),
        (
            "WITH x AS MATERIALIZED (SELECT now() AS at) "
            "UPDATE skipqueue_job SET run_after = COALESCE(run_after, (SELECT at FROM x))",
            None,
        ),
        ("UPDATE skipqueue_job SET task = 'x' RETURNING run_after - now()", "RETURNING"),
        ("UPDATE skipqueue_job SET task = 'x' RETURNING (SELECT now())", "RETURNING"),
        ("UPDATE skipqueue_job SET task = 'x' RETURNING date_part('epoch', run_after)", "RETURNING"),
        ("UPDATE skipqueue_job SET task = 'x' RETURNING date_part('epoch', run_after - to_timestamp(0))", None),
        (
            "INSERT INTO skipqueue_worker (id) VALUES ('x') ON CONFLICT (id) DO UPDATE SET heartbeat_at = now()",
            "ON CONFLICT",
        ),
        (
            "INSERT INTO skipqueue_worker (id, heartbeat_at) VALUES ('x', now()) "
            "ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at",
            None,
        ),
        (
            "INSERT INTO skipqueue_worker AS w (id) VALUES ('x') ON CONFLICT (id) DO UPDATE SET pid = 1 "
            "WHERE w.heartbeat_at < now()",
            "ON CONFLICT",
        ),
        (
            "WITH x AS (INSERT INTO skipqueue_worker (id) VALUES ('x')) UPDATE skipqueue_job SET task = 'x'",
            "INSERT",
        ),
        ("INSERT INTO skipqueue_worker (id) VALUES ((SELECT 'x'))", "subquery"),
    ],
)  # fmt: skip
def test_the_rules_of_citus_are_applied(text: str, refused: str | None) -> None:
    with connect() as connection:
        found = list(refusals(connection, text))
    assert refused in found[0] if refused else not found


def refusals(connection: psycopg.Connection[Any], text: str) -> Iterator[str]:
    """What Citus would refuse in a statement, in the words of its errors."""
    tree = parse_tree(connection, text)
    volatility = dict(connection.execute("SELECT oid::bigint, provolatile FROM pg_proc").fetchall())
    conversions = {
        oid: (volatility.get(into, "i"), volatility.get(out, "i"))
        for oid, into, out in connection.execute(
            "SELECT oid::bigint, typinput::oid::bigint, typoutput::oid::bigint FROM pg_type"
        )
    }
    yield from Planner(volatility, conversions).refusals(tree)


def parse_tree(connection: psycopg.Connection[Any], text: str) -> Node:
    """The tree that PostgreSQL makes of a statement. It infers the types of all parameters but `call`."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    numbered = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", text)
    types = ", ".join("text" if name == "call" else "unknown" for name in names)
    printed: list[str] = []
    connection.add_notice_handler(lambda notice: printed.append(notice.message_detail or ""))
    connection.execute("SET debug_print_parse = on; SET debug_pretty_print = off; SET client_min_messages = log")
    psycopg.ClientCursor(connection).execute(f"PREPARE looked_at{f' ({types})' if names else ''} AS {numbered}")
    connection.execute("SET debug_print_parse = off; DEALLOCATE looked_at")
    *_, tree, _ = printed  # the last one is that of the SET
    return read_tree(tree)


TOKEN = re.compile(r"[{}()\[\]]|(?:\\.|[^\s{}()\[\]\\])+", re.DOTALL)
SELECT, UPDATE, INSERT, DELETE = range(1, 5)
"""The numbers of PostgreSQL's `CmdType`."""
SUBQUERY = 1
"""The number of a subquery among PostgreSQL's `RTEKind`."""
APART = ("limitOffset", "limitCount", "distinctClause", "groupClause")
"""PostgreSQL does not merge a subquery with one of these clauses into the statement around it."""


def read_tree(printed: str) -> Node:
    """Read what `debug_print_parse` writes: `{NODE :field value …}`, and lists in parentheses."""
    tokens = iter(TOKEN.findall(printed))

    def read(token: str) -> Any:
        if token == "{":
            kind = next(tokens)
            fields: dict[str, list[Any]] = {}
            while (token := next(tokens)) != "}":
                if token.startswith(":"):
                    values = fields[token[1:]] = []
                else:
                    values.append(read(token))
            return {"node": kind} | {name: value[0] if len(value) == 1 else value for name, value in fields.items()}
        if token in "([":
            close = ")" if token == "(" else "]"
            return [read(token) for token in iter(lambda: next(tokens), close)]
        return int(token) if re.fullmatch(r"-?\d+", token) else token

    tree: Node = read(next(tokens))
    return tree


class Planner:
    """The checks of Citus' planner."""

    def __init__(self, volatility: Mapping[int, str], conversions: Mapping[int, tuple[str, str]]) -> None:
        self._volatility = volatility
        self._conversions = conversions

    def refusals(self, tree: Any) -> Iterator[str]:
        """Those of every statement that writes, in it or in its common table expressions."""
        for query in self._nodes(tree):
            if query["node"] == "QUERY" and query["commandType"] in (UPDATE, INSERT, DELETE):
                yield from self._of_query(query)

    def _of_query(self, query: Node) -> Iterator[str]:
        kind = query["commandType"]
        if kind != INSERT:
            if any(self._calls(node) & {"v"} for node in self._nodes(query)):
                yield "a VOLATILE function in an UPDATE or a DELETE"
            for cte in listed(query["cteList"]):
                if cte["ctequery"]["commandType"] == INSERT:
                    yield "an INSERT within an UPDATE or a DELETE"
            for expression in (query["targetList"] if kind == UPDATE else [], query["jointree"]["quals"]):
                yield from self._irreducible(self._merged(expression, query))
        elif query["hasSubLinks"] == "true" and not any(
            table["rtekind"] == SUBQUERY for table in listed(query["rtable"])
        ):
            yield "a subquery in an INSERT of VALUES"
        if self._is_mutable(self._merged(query["returningList"], query)):
            yield "a function in RETURNING is not IMMUTABLE"
        if isinstance(conflict := query["onConflict"], dict) and self._is_mutable(
            [conflict["onConflictSet"], conflict["arbiterWhere"], conflict["onConflictWhere"]]
        ):
            yield "a function in ON CONFLICT is not IMMUTABLE"

    def _nodes(self, tree: Any) -> Iterator[Node]:
        """All nodes, those of subqueries and of common table expressions among them."""
        if isinstance(tree, dict):
            yield tree
            tree = list(tree.values())
        if isinstance(tree, list):
            for part in tree:
                yield from self._nodes(part)

    def _is_mutable(self, tree: Any) -> bool:
        return any(self._calls(node) - {"i"} for node in self._nodes(tree))

    def _calls(self, node: Node) -> set[str]:
        """The volatility of the functions that this node calls itself: `i`, `s` or `v`."""
        if node["node"] in ("SQLVALUEFUNCTION", "CURRENTOFEXPR"):
            return {"s"}
        if node["node"] == "NEXTVALUEEXPR":
            return {"v"}
        if node["node"] == "COERCEVIAIO":
            return {self._conversions[node["resulttype"]][0], self._conversions[type_of(node["arg"])][1]}
        functions = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
        return {self._volatility[node[name]] for name in functions if node.get(name)}

    def _irreducible(self, tree: Any) -> Iterator[str]:
        """STABLE functions that Citus cannot call once, before the statement. Does not look into subqueries."""
        if isinstance(tree, list):
            for part in tree:
                yield from self._irreducible(part)
        elif isinstance(tree, dict) and tree["node"] != "QUERY":
            if tree["node"] in ("CASEEXPR", "COALESCEEXPR"):
                if self._is_mutable(tree):
                    yield "a function in CASE or COALESCE is not IMMUTABLE"
            elif "s" in self._calls(tree) and any(node["node"] == "VAR" for node in within(tree)):
                yield "a STABLE function of columns in an UPDATE"
            else:
                yield from self._irreducible(list(tree.values()))

    def _merged(self, tree: Any, query: Node) -> Any:
        """With the columns of subqueries in FROM written out, where PostgreSQL does that before Citus looks."""
        if isinstance(tree, list):
            return [self._merged(part, query) for part in tree]
        if not isinstance(tree, dict) or tree["node"] == "QUERY":
            return tree
        if tree["node"] == "VAR" and not tree["varlevelsup"]:
            table = query["rtable"][tree["varno"] - 1]
            if table["rtekind"] == SUBQUERY and not any(table["subquery"][name] != "<>" for name in APART):
                return self._merged(table["subquery"]["targetList"][tree["varattno"] - 1]["expr"], table["subquery"])
        return {key: self._merged(value, query) for key, value in tree.items()}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def within(tree: Any) -> Iterator[Node]:
    """The nodes of an expression, without those of its subqueries."""
    if isinstance(tree, list):
        for part in tree:
            yield from within(part)
    elif isinstance(tree, dict) and tree["node"] != "QUERY":
        yield tree
        yield from within(list(tree.values()))


TYPES = {"BOOLEXPR": 16, "NULLTEST": 16, "SCALARARRAYOPEXPR": 16, "BOOLEANTEST": 16, "DISTINCTEXPR": 16}
FIELDS = ("vartype", "consttype", "paramtype", "funcresulttype", "opresulttype", "resulttype", "casetype",
          "coalescetype", "aggtype", "minmaxtype", "array_typeid", "typeId", "wintype", "refrestype")  # fmt: skip


def type_of(node: Node) -> int:
    """The type of an expression, as PostgreSQL's `exprType`."""
    if node["node"] == "SUBLINK":
        return type_of(node["subselect"]["targetList"][0]["expr"])
    return next((node[name] for name in FIELDS if name in node), TYPES.get(node["node"], 0))
