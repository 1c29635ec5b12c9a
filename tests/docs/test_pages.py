"""The code on the how-to pages works: the tests run Python and SQL, and parse the arguments of commands.

A name that a page does not define belongs to the reader's project, and gets a stand-in. A block that cannot be run here
has a comment above it, `<!-- not run: why -->`, and is only compiled. A block with `<!-- only: django >= 6.0 -->` is
run on these versions of Django only.
"""

import ast
import builtins
import re
import shlex
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import django
import pytest
from django.core.management import get_commands, load_command_class
from django.db import connection, models, transaction
from django.test import TestCase, override_settings
from django.test.utils import isolate_apps
from django.utils.timezone import now

from django_skipqueue import JobContext, conf, job
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ..app.rows import make_job
from ..parts.schedules.rows import without_entries

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "how-to").glob("*.md"))
COMMANDS_OF_THE_APP = ("runworker", "runrelay", "prunejobs", "importtasks", "skipqueue")


class Block(NamedTuple):
    line: int
    language: str
    code: str
    mark: str
    """The text of the HTML comment above the block; empty without a comment."""

    @property
    def is_run(self) -> bool:
        if self.mark.startswith("only: "):
            version = re.fullmatch(r"only: django >= (\d+)\.(\d+)", self.mark)
            assert version, self.mark
            return (int(version[1]), int(version[2])) <= django.VERSION
        assert self.mark == "" or re.fullmatch(r"not run: .+", self.mark), self.mark
        return not self.mark


def code_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^( *)```(\w+)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        line_above = text[: match.start()].rstrip().rpartition("\n")[2]
        comment = re.fullmatch(r" *<!-- (.*) -->", line_above)
        line = text[: match.start()].count("\n") + 1
        yield Block(line, match[2], textwrap.dedent(match[3]), comment[1] if comment else "")


USUAL_IMPORTS = {
    "F": models.F,
    "Job": Job,
    "JobContext": JobContext,
    "TestCase": TestCase,
    "job": job,
    "now": now,
    "timedelta": timedelta,
    "transaction": transaction,
}
"""Names that a page may use without an import."""


class Reader:
    """Runs the blocks of a page one after the other, with stand-ins for names of the reader's project."""

    def __init__(self, page_text: str) -> None:
        self.names: dict[str, Any] = {"__name__": "tests.app.page"}
        self.queues: dict[str, Any] = {}  # the key QUEUES of the settings that the page has shown so far
        self._tasks = set(re.findall(r"\b(\w+)\.a?(?:defer|defer_many|using)\(", page_text))

    def run(self, code: str, place: str) -> None:
        """Run one block, with a stand-in for each name that the block uses and no block has defined."""
        self.names.update(USUAL_IMPORTS)
        tree = ast.parse(code, place)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id) and node.id not in self.names:
                self.names[node.id] = self._stand_in(node.id)
        settings = {name: self.names[name] for name in ("TASKS",) if name in self.names}
        with override_settings(**settings, **({"SKIPQUEUE": {"QUEUES": self.queues}} if self.queues else {})):
            exec(compile(tree, place, "exec"), self.names)

    def _stand_in(self, name: str) -> Any:
        if name[0].isupper():
            return type(name, (Exception,), {"DoesNotExist": KeyError, "objects": MagicMock()})
        if name not in self._tasks:
            return MagicMock(unsafe=True)  # a page may call a method that begins with `assert`

        def do_nothing(*args: Any, **kwargs: Any) -> None: ...

        do_nothing.__qualname__ = do_nothing.__name__ = name
        return job(do_nothing)


SKIP_IDS_UP_TO_42 = """
SELECT setval(sequence, greatest(nextval(sequence), 42)) FROM pg_get_serial_sequence('skipqueue_job', 'id') AS sequence
"""


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_blocks_of_a_page_run(page: Path, registry: Registry) -> None:
    make_job("running", id=42)
    with connection.cursor() as cursor:  # the pages use the id 42 in examples: no real job may get it
        cursor.execute(SKIP_IDS_UP_TO_42)
    reader = Reader(page.read_text())
    with isolate_apps("tests.app"), without_entries():
        for block in code_blocks(page):
            if block.language == "python":
                compile(block.code, f"{page}:{block.line}", "exec")
                if block.is_run:
                    reader.run(block.code, f"{page}:{block.line}")
                    setting = reader.names.pop("SKIPQUEUE", {})
                    check_settings(setting)
                    reader.queues |= setting.get("QUEUES", {})


def check_settings(setting: Any) -> None:
    """Check that the setting SKIPQUEUE of a page has no mistake."""
    with override_settings(SKIPQUEUE=setting):
        assert list(conf.problems()) == []


@pytest.mark.django_db
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_sql_blocks_of_a_page_run(page: Path) -> None:
    for block in code_blocks(page):
        if block.language == "sql" and block.is_run:
            with transaction.atomic(), connection.cursor() as cursor:
                for statement in re.sub(r"--.*", "", block.code).split(";"):
                    if statement.strip():
                        cursor.execute(statement)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_management_commands_on_a_page_can_be_parsed(page: Path) -> None:
    for command, arguments in re.findall(
        rf"manage\.py ({'|'.join(COMMANDS_OF_THE_APP)})\b([^\n`|&;>]*)", page.read_text()
    ):
        words = [word for word in shlex.split(arguments, comments=True) if word != "…"]
        load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(words)


def test_every_not_run_comment_is_directly_above_a_code_block() -> None:
    for page in PAGES:
        comments = re.findall(r"^ *<!-- (?:only|not run): ", page.read_text(), re.MULTILINE)
        assert len(comments) == sum(bool(block.mark) for block in code_blocks(page)), page


def test_a_code_block_with_a_wrong_option_fails_the_test_of_its_page(registry: Registry) -> None:
    """Shows that the tests above can fail."""
    code = "send.using(queue='a').defer()"
    with pytest.raises(TypeError, match="Did you mean queue_name"):
        Reader(code).run(code, "a page")
