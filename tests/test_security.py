"""What a row may not do to a worker, and what no source of ours may contain: read from the sources, and run."""

import ast
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import django_skipqueue
from django_skipqueue.events import liveness_logs, logs
from django_skipqueue.exceptions import UnknownTask
from django_skipqueue.models import Job
from django_skipqueue.store import sql
from django_skipqueue.tasks.registry import registry
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, RecoveredJob

from .app.rows import make_job

PACKAGE = Path(django_skipqueue.__file__).parent
SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
every_source = pytest.mark.parametrize("name", SOURCES)


def nodes(name: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(SOURCES[name].read_text()))


# A row names a task, and nothing else


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("task", "call"),
    [
        ("os.system", "touch {}"),
        ("os.mkdir", "{}"),
        ("builtins.exec", "open({!r}, 'w')"),
        ("tests.app.opened.leave", "{}"),
        ("tests.app.jobs.Path.touch", "{}"),
    ],
)
def test_a_row_that_names_a_callable_runs_and_imports_nothing(
    task: str, call: str, tmp_path: Path, runworker: Callable[..., Any]
) -> None:
    trace = tmp_path / "trace"
    job = make_job(task=task, args=[call.format(str(trace))])
    assert runworker("--drain").wait() == 0
    job.refresh_from_db()
    assert not trace.exists()
    assert job.status == "scheduled"
    assert job.last_error.startswith(f"UnknownTask: No task is registered as {task!r}")


@pytest.mark.parametrize("name", ["os.system", "tests.app.jobs", "tests.app.jobs.noop.__call__", "", "__class__"])
def test_the_registry_knows_what_was_registered_and_nothing_else(name: str) -> None:
    with pytest.raises(UnknownTask):
        registry.get(name)


IMPORTERS = {"import_string", "import_module", "__import__", "autodiscover_modules", "find_spec"}
MAY_IMPORT = {
    "apps.py": "the modules of installed apps, and the classes that TASKS names",
    "backend/__init__.py": "the modules of installed apps",
    "backend/framework.py": "the class that TASKS names for an alias",
    "backend/options.py": "a backoff that the project's settings or code name",
    "execution/middleware.py": "the middleware that the project's settings name",
    "placement/choose.py": "the function that SKIPQUEUE['PLACEMENT'] names",
    "relay/making.py": "the Celery app that SKIPQUEUE['CARRIERS'] names",
}


@every_source
def test_nothing_is_imported_by_a_name_but_what_the_project_says(name: str) -> None:
    called = {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in nodes(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }
    assert not called & IMPORTERS or name in MAY_IMPORT


# JSON, and nothing that runs what it reads


UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "yaml", "code", "codeop"}


@every_source
def test_nothing_can_be_unpickled_or_evaluated(name: str) -> None:
    for node in nodes(name):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & UNSAFE
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in UNSAFE
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile")
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            pytest.fail("a command goes through a shell")


# No value is formatted into SQL


RUNS_SQL = {"execute", "executemany", "raw", "RawSQL", "RunSQL", "copy", "stream", "mogrify", "SQL"}
"""`SQL` is psycopg's: a template, into which nothing but identifiers and literals is put, each quoted."""


SAFE = ast.Constant, ast.Name, ast.Attribute, ast.Starred
"""Text as it stands, or made elsewhere: `test_sql` looks for statements that are put together anywhere."""


def unsafe_statements(tree: ast.AST) -> Iterator[int]:
    """Lines with a statement that is put together where it is run: an f-string, `%`, `+`, a call of anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg in ("query", "sql"))]
            if called == "extra" or (called in RUNS_SQL and not all(isinstance(each, SAFE) for each in given)):
                yield node.lineno


@every_source
def test_no_statement_is_put_together_where_it_is_run(name: str) -> None:
    assert not list(unsafe_statements(ast.parse(SOURCES[name].read_text())))


@pytest.mark.parametrize(
    "code",
    [
        "c.execute(f'SELECT {x}')", "c.execute('SELECT %s' % x)", "c.execute('SELECT ' + x)", "Job.objects.raw(sql())",
        "c.execute('{}'.format(x), [])", "SQL(f'DROP INDEX {x}')", "RunSQL(f'{x}')", "Job.objects.extra({}, [x])",
    ],
)  # fmt: skip
def test_the_reader_sees_a_statement_that_is_put_together(code: str) -> None:
    assert list(unsafe_statements(ast.parse(code)))


COMPOSERS = {"entering", "recording", "to_run", "SETTLE.replace"}
"""They put literals into a literal, at import."""


def is_literal(value: ast.expr) -> bool:
    """Whether this is a literal, or one into which other literals are put: the conditions of gates, a statement."""
    if isinstance(value, ast.JoinedStr):
        parts = (part.value for part in value.values if isinstance(part, ast.FormattedValue))
        return all(isinstance(part, ast.Name) and part.id.isupper() for part in parts)
    if isinstance(value, ast.Call) and ast.unparse(value.func) in COMPOSERS:
        return all(is_literal(part) for part in (*value.args, *(named.value for named in value.keywords)))
    if isinstance(value, ast.Dict):
        return all(is_literal(part) for part in value.values)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


OF_THE_STORE = {
    name
    for name in SOURCES
    if name.startswith("store/sql/") and not name.endswith(("__init__.py", "gates.py", "operations.py", "to_run.py"))
}
OF_FEATURES = {name for name in SOURCES if name.endswith("/sql.py")}
"""A feature has its statements in the file `sql.py` of its own room."""


def statements_in(name: str) -> set[str]:
    """The names of the literals in a file of statements, which holds nothing else."""
    found = set()
    for node in ast.parse(SOURCES[name].read_text()).body:
        if isinstance(node, ast.Assign):
            assert is_literal(node.value), ast.unparse(node)
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            assert {alias.name for alias in node.names} <= COMPOSERS
        else:
            assert isinstance(node, ast.Expr), f"{name} holds statements, and no code"
            assert isinstance(node.value, ast.Constant)
    return found


@pytest.mark.parametrize("name", sorted(OF_THE_STORE | OF_FEATURES))
def test_the_statements_are_plain_literals_with_named_parameters(name: str) -> None:
    module = import_module(f"{PACKAGE.name}.{name.removesuffix('.py').replace('/', '.')}")
    for statement in statements_in(name):
        assert not re.search(r"%(?!\(\w+\)s)", getattr(module, statement).replace("%%", "")), statement


def test_the_store_has_every_statement_of_its_files() -> None:
    found = {statement for name in OF_THE_STORE for statement in statements_in(name)}
    assert {name for name in found if not name.startswith("_")} == {name for name in vars(sql) if name.isupper()}


# Log lines


FORGED = "x\n2030-01-01 CRITICAL forged\r\x1b[2J\x1b]0;t\x07\u2028\x85\u202e\0end"
JOB = ClaimedJob(7, 1, FORGED, FORGED, "[]", "{}", 2, 10, 0, 0.0, 0.0, "{}")
ATTEMPT = Attempt(JOB, Outcome("failed", last_error=FORGED), 1.0, 2.0, FORGED)
VALUES: dict[str, Any] = {
    "job": JOB, "attempt": ATTEMPT, "attempts": [ATTEMPT], "worker": FORGED, "who": FORGED, "sender": FORGED,
    "worker_id": FORGED, "queue_name": FORGED, "queue_names": [FORGED], "error": ValueError(FORGED), "cause": FORGED,
    "lines": [FORGED], "reason": FORGED, "job_id": 7,
    "signal_name": "SIGTERM", "jobs_done": 1, "count": 1, "counts": {"failed": 1}, "timeout": 1.0,
    "changed": FORGED, "code": 1, "log_format": FORGED, "grace": 1.0, "wait_ms": 1.0, "known": [FORGED],
    "retry_in": 1.0, "restart_in": 1.0, "seconds": 1.0, "service": FORGED, "stack": FORGED, "hint": FORGED,
    "outcome": Outcome("failed", last_error=FORGED), "part": FORGED, "supervisor": FORGED, "alias": FORGED,
}  # fmt: skip
SPEAKERS = {
    name: value
    for module in (logs, liveness_logs) for name, value in vars(module).items()
    if callable(value) and getattr(value, "__module__", "") == module.__name__
    and not name.startswith("_")
    and name not in ("worker_name", "write", "write_about_worker")
}  # fmt: skip


@pytest.mark.parametrize("name", SPEAKERS)
def test_no_line_of_the_log_can_be_forged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every function of the module that logs, also one that is new: its parameters have to be among the values."""
    caplog.set_level(logging.DEBUG, logger="django_skipqueue")
    speak = SPEAKERS[name]
    code = speak.__code__
    values = {parameter: VALUES[parameter] for parameter in code.co_varnames[: code.co_argcount]}
    if name == "job_recovered":
        values["job"] = RecoveredJob(7, FORGED, FORGED, 2, "queued", FORGED, datetime.now(UTC), "{}", datetime.now(UTC))
    speak(**values)
    assert caplog.messages
    for message in caplog.messages:
        assert message.isprintable(), repr(message)


def test_a_large_batch_is_one_line_as_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="django_skipqueue")
    logs.completed([ATTEMPT] * (logs.LARGE_BATCH + 1))
    (message,) = caplog.messages
    assert message.isprintable()


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_writes_no_line_that_a_row_has_forged(runworker: Callable[..., Any]) -> None:
    make_job(task=f"no.such.task{FORGED}".replace("\0", ""), queue_name="forged\nqueue")
    worker = runworker("--drain", "--verbosity", "2")
    assert worker.wait() == 0
    assert Job.objects.scheduled().exists()
    assert "no.such.task" in worker.log
    assert not re.search(r"^2030-01-01 CRITICAL forged", worker.log, re.MULTILINE)
