"""Each rule of `scripts/lint.py` reports the lines that break the rule, and no other lines."""

from pathlib import Path
from typing import NamedTuple

import pytest

from scripts import lint


class Case(NamedTuple):
    """The code of a module that breaks a rule in its last line, and code that keeps the rule."""

    path: str
    wrong_code: str
    right_code: str


CASES = {
    "glossary": Case("worker/a.py", "x = 1\ndef _promoteDue(): ...", "def admit(): return promote()"),
    "made_code": Case("worker/a.py", "x = 1\nrun('ls', shell=True)", "re.compile('x')\nrun('ls')"),
    "statement_run": Case("console/a.py", "x = 1\nc.execute('SELECT ' + x)", "c.execute(sql.TABLES, [x])"),
    "statement_made": Case("console/a.py", "x = 1\ny = f'SELECT {x}'", "y = f'{x} SELECT'\nz = 'select %s' % x"),
    "statement_literal": Case("queue/a.py", "A = 'SELECT 1'\nB = A + ' WHERE'", '_A = "SELECT"\nB = joined(f"{_A} 1")'),
    "statement_parameter": Case("queue/a.py", "A = '%s'\nB = 'SELECT %s'", "A = 'SELECT %(a)s LIKE %%'"),
    "statement_status": Case("parts/a.py", "x = 1\ny = 'status = %(s)s'", "y = \"status = 'failed' AND x = %(x)s\""),
    "statement_session": Case("parts/a.py", "x = 1\ny = 'pg_advisory_lock(1)'", "y = 'pg_advisory_xact_lock(1)'"),
    "statement_caller": Case(
        "queue/a.py", "# Sent by f.\nA = 'SELECT'\n\nB = joined(A)", "# Sent by f.\nA = 'SELECT'\n\n_B = 'SELECT'"
    ),
    "statement_import": Case(
        "console/a.py", "from ..queue import claim as b\nb.CLAIM", "from ..queue import claim\nclaim.X"
    ),
}


def reported_lines(rule: str, path: str, text: str) -> list[int]:
    """The numbers of the lines of a module that a rule of the linter reports."""
    return [line for line, _ in getattr(lint, rule)(lint.parse(path, text))]


def test_every_rule_reports_the_line_that_breaks_it_and_no_other_line() -> None:
    assert {rule.__name__ for rule in lint.RULES} == set(CASES)
    for rule, (path, wrong_code, right_code) in CASES.items():
        assert reported_lines(rule, path, wrong_code) == [len(wrong_code.splitlines())], rule
        assert reported_lines(rule, path, right_code) == [], rule


# Code of the console that runs an SQL statement, and puts it together in the same expression.
STATEMENTS_RUN_IN_PLACE = (
    "c.execute(f'SELECT {x}')",
    "c.execute('SELECT %s' % x)",
    "c.execute('SELECT ' + x)",
    "c.execute('{}'.format(x), [])",
    "Job.objects.raw(sql())",
    "Job.objects.extra({}, [x])",
    "SQL(f'DROP INDEX {x}')",
    "RunSQL(f'{x}')",
)
# Code of the console that puts an SQL statement together.
STATEMENTS_COMPOSED_IN_CONSOLE = (
    "f'SELECT {x}'",
    "f'''\n  WITH x AS ({y})'''",
    "'SELECT %s' % x",
    "'UPDATE t ' + x",
    "'DELETE FROM {}'.format(x)",
    "sql.CLAIM % x",
    "sql.CLAIM + x",
    "sql.CLAIM.replace('a', x)",
    "f'{sql.CLAIM} LIMIT {x}'",
    "f'{TAKE_OVER} LIMIT {x}'",
    "OURS.replace('a', x)",
    "joined(x)",
)
IMPORTS_AND_CONSTANTS = "from ..queue import claim as sql; from ..queue.claim import TAKE_OVER; OURS = 'SELECT 1'; "
# Values of constants that are SQL statements, but not literals.
STATEMENTS_COMPOSED_AT_IMPORT = (
    "'SELECT %s' % x",
    "f'SELECT {x}'",
    "f'SELECT {CLAIM + x}'",
    "joined(x)",
    "joined('SELECT', more=x)",
    "CLAIM.replace('a', 'b')",
)


def test_every_way_to_compose_a_statement_is_reported() -> None:
    for code in STATEMENTS_RUN_IN_PLACE:
        assert reported_lines("statement_run", "console/a.py", code) == [1], code
    for code in STATEMENTS_COMPOSED_IN_CONSOLE:
        assert reported_lines("statement_made", "console/a.py", f"{IMPORTS_AND_CONSTANTS}{code}") == [1], code
    for code in STATEMENTS_COMPOSED_AT_IMPORT:
        assert reported_lines("statement_literal", "queue/a.py", f"A = {code}") == [1], code


def test_a_statement_is_joined_at_import_by_a_composer() -> None:
    for code in (
        "joined('SELECT 1', status=entering(column='job.{}'))",
        "joined(CLAIM, of_carrier=OF_CARRIER)",
        "{'a': 'SELECT'}",
    ):
        for rule in ("statement_literal", "statement_made"):
            assert reported_lines(rule, "queue/a.py", f"A = {code}") == [], code
    function_template = "def {}(statement): return f'SELECT {{statement}}'"
    assert reported_lines("statement_made", "queue/a.py", function_template.format("joined")) == []
    assert reported_lines("statement_made", "queue/a.py", function_template.format("to_walk")) == [1]


def test_a_statement_is_used_only_in_its_folder_and_in_modules_of_statements() -> None:
    claim_user = "from {}queue.claim import CLAIM\nCLAIM"
    gate_user = "from {}parts.limits.admit import ADMIT_LONE\nADMIT_LONE"
    # The module, its code, and the lines that the rule reports.
    for path, code, expected in (
        ("queue/a.py", claim_user.format(".."), []),
        ("parts/limits/a.py", gate_user.format("..."), []),
        ("queue/a.py", gate_user.format("..") + "\nOURS = 'SELECT'", []),
        ("parts/rates/a.py", claim_user.format("...") + "\nOURS = 'SELECT'", []),
        ("queue/a.py", gate_user.format(".."), [2]),
        ("parts/rates/a.py", gate_user.format("..."), [2]),
        ("parts/limits/a.py", claim_user.format("..."), [2]),
        ("console/admin/a.py", gate_user.format("...") + "\nOURS = 'SELECT'", [2]),
        ("worker/a.py", claim_user.format(".."), [2]),
        ("parts/limits/a.py", "from ...contrib.celery import rows\nrows.HAND_OVER\nOURS = 'SELECT'", [2]),
    ):
        assert reported_lines("statement_import", path, code) == expected, (path, code)


def test_the_words_that_the_glossary_rules_out_are_reported() -> None:
    ruled_out = lint.ruled_out(lint.GLOSSARY.read_text())
    assert {"dequeue", "promote", "reap", "lock_token", "execution", "give_back"} <= ruled_out
    assert not {"message", "*message*"} & ruled_out, "exceptions have messages"
    for name in ("promote", "_promoteDue", "PROMOTE", "due_promote_at"):
        assert "_promote_" in lint.in_words(name), name


def test_a_constant_has_a_name_of_its_own() -> None:
    module_a = lint.parse(
        "a.py", "LONGEST: int = 1\nLONGER = 1\nT = 1\n_OURS = 1\nPART = 1\nfrom b import SHOWN\nCLAIM = 'SELECT 1'"
    )
    module_b = lint.parse("b/c.py", "LONGER = a.LONGER\nT = 2\n_OURS = 2\nPART = 2\nCLAIM = 2\nSHOWN, LONGEST = 2, 3")
    assert list(lint.constant_name([module_a, module_b])) == [
        "django_skipqueue/b/c.py:6: constant-name: Another module has a constant of this name: a name says of what. "
        "(LONGEST, a.py)"
    ]


PRIVATE_CODE = "_there = 1\nclass _Kept:\n    def _run(self): self._left, self.right = 1, 2\n    _field: int = 0"


def test_a_test_uses_no_private_name_of_the_package() -> None:
    private_names = lint.private_names([lint.parse("a.py", PRIVATE_CODE)])
    assert private_names == {"_there", "_Kept", "_run", "_left", "_field"}
    for code in (
        "worker._left",
        "worker.a._run()",
        "from django_skipqueue.a import _there",
        "monkeypatch.setattr(a, '_there', 1)",
        "patch.object(a, '_there')",
        "setting('x'); monkeypatch.setattr('django_skipqueue.a._there', 1)",
    ):
        findings = list(lint.private_use("tests/test_a.py", lint.parse("tests/test_a.py", code), private_names))
        assert [finding.partition(": ")[0] for finding in findings] == ["tests/test_a.py:1"], code
    for code in ("self._left", "super()._run()", "row._state.db", "from .a import _there", "worker._own", "a('_left')"):
        assert not list(lint.private_use("tests/test_a.py", lint.parse("tests/test_a.py", code), private_names)), code


WORDS = """
[rooms]
core = ["package/core/", "package/conf.py"]

[[words]]
pattern = "(?i)(?<![a-z])alerts?(?![a-z])"
instead = "no part"
rooms = ["core", "scripts/"]
not_in = ["package/core/list.py"]
"""


def test_a_word_is_reported_only_in_the_folders_of_its_rule() -> None:
    text = "from .alerts import x\nRAISED_ALERTS = x  # alerted\nalertness = 1\n"
    for path, findings in (
        ("package/core/a.py", ["word: The table scripts/words.toml rules this out here. (ALERTS: no part)"]),
        ("package/core/list.py", []),
        ("package/console/a.py", []),
    ):
        assert list(lint.word(path, text, list(lint.words(WORDS)))) == [
            f"{path}:2: {finding}" for finding in findings
        ], path


def test_each_room_of_the_table_exists() -> None:
    for path in (path for row in lint.WORDS for path in (*row.rooms, *row.not_in)):
        assert (lint.ROOT / path).exists(), path


def test_an_import_cycle_is_reported_at_an_import_that_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "circular"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from . import b")
    (package / "b.py").write_text(FOR_TYPES.format("a"))
    assert not list(lint.import_cycle("circular"))
    (package / "b.py").write_text("def f():\n    from . import a")
    (finding,) = lint.import_cycle("circular")
    assert finding.startswith(("circular/a.py:1: import-cycle: ", "circular/b.py:2: import-cycle: "))


FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import {}"


def test_a_page_that_names_a_module_that_does_not_exist_is_reported() -> None:
    page = "`queue`, `queue.claim`, `queue/settle.py`,\n`django.tasks`, `sql.py`, `no.module`, `queue/no.py`"
    assert list(lint.page_name("a.md", page)) == [
        "a.md:2: page-name: The page names a module that does not exist. (no.module)",
        "a.md:2: page-name: The page names a module that does not exist. (queue/no.py)",
    ]


BLOCKS = """
```python
from django_skipqueue import job
from shop.jobs import ours
```

```python
@job
def send(total: Decimal) -> None: ...

ours(theirs, total=send)
```
"""


def test_a_page_that_uses_a_library_name_without_an_import_is_reported() -> None:
    page_with_imports = "```python\nfrom decimal import Decimal\nfrom shop.jobs import theirs\n```\n"
    assert list(lint.page_import({"a.md": BLOCKS, "b.md": page_with_imports})) == [
        "a.md:9: page-import: The page uses a name that no block of the page has imported before. (Decimal)"
    ]
    assert list(lint.page_import({"a.md": page_with_imports + BLOCKS})) == []


def test_a_finding_says_where_and_why_and_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "linted"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint, "PACKAGE", package)
    monkeypatch.setattr(lint, "CONTRIBUTORS_PAGES", ())
    assert lint.main() == 0
    (package / "__init__.py").write_text("x = 1\nreap = 2\n")
    assert lint.main() == 1
    assert (
        capsys.readouterr().out == "linted/__init__.py:2: glossary: The glossary rules out a word of the name. (reap)\n"
    )
