"""`scripts/without_part.py` removes the files and lines of a part, and reports other lines that still use the part."""

from pathlib import Path

import pytest

from scripts import without_part
from scripts.without_part import NotRemovable


def test_the_files_of_a_part_are_its_folders_its_command_and_its_tests() -> None:
    removed = [
        "django_skipqueue/parts/mail/part.py",
        "django_skipqueue/templates/admin/django_skipqueue/mail/notice.html",
        "django_skipqueue/templates/admin/django_skipqueue/letter/change_list.html",
        "django_skipqueue/management/commands/mail.py",
        "tests/mail/app.py",
        "tests/console/admin/mail/test_page.py",
        "tests/console/rules/test_mail.py",
        "tests/console/rules/test_mail_plans.py",
    ]
    kept = [
        "django_skipqueue/parts/mailbox/part.py",
        "django_skipqueue/queue/mail.py",
        "django_skipqueue/templates/admin/django_skipqueue/job/mail.html",
        "docs/how-to/mail.md",
        "tests/app/mail.py",
        "tests/console/rules/test_mailbox.py",
    ]
    assert list(without_part.own_paths(map(Path, removed + kept), "mail", {"letter"})) == list(map(Path, removed))


def test_the_import_of_a_part_and_its_lines_in_lists_are_removed() -> None:
    source = (
        "from .mail.part import PART as MAIL\n"
        "from .other.part import PART as OTHER\n"
        "from ..parts.mail.models import Box, Letter\n"
        "ALL = (\n    MAIL,\n    OTHER,\n    *Box.KINDS,\n    'Letter',\n)\n"
    )
    remaining = "from .other.part import PART as OTHER\nALL = (\n    OTHER,\n)\n"
    assert without_part.without_lines(source, "mail") == remaining
    assert without_part.without_lines(remaining, "mail") == remaining


@pytest.mark.parametrize("use_of_part", ["send(MAIL)", "ALL = (MAIL, OTHER)", "    MAIL, OTHER,"])
def test_a_part_that_is_used_outside_of_a_list_is_not_removable(use_of_part: str) -> None:
    with pytest.raises(NotRemovable, match="more than a name"):
        without_part.without_lines(f"from .mail.part import PART as MAIL\n{use_of_part}\n", "mail")


def test_the_name_of_a_removed_part_is_deleted_from_the_list_of_parts() -> None:
    assert without_part.without_name('NAMES = (\n    "mail",\n    "mailbox",\n)\n', "mail") == (
        'NAMES = (\n    "mailbox",\n)\n'
    )


def test_import_contracts_that_name_a_part_are_removed() -> None:
    source = '    "a -> django_skipqueue.parts.mail.models",  # why\n    "b", "django_skipqueue.parts.mail.**",\n'
    assert without_part.without_contracts(source, "mail") == '    "b", "django_skipqueue.parts.mail.**",\n'


@pytest.mark.parametrize(
    "line",
    [
        "import django_skipqueue.parts.mail",
        "from django_skipqueue.parts import mail",
        "from ..parts.mail.box import Box",
        "from ..parts import other, mail",
        "patch('django_skipqueue.parts.mail.box.SECONDS', 1)",
    ],
)
def test_every_import_of_a_removed_part_is_reported(line: str) -> None:
    leftovers = list(without_part.leftovers(Path("django_skipqueue/queue/claim.py"), f"import json\n{line}\n", "mail"))
    assert [number for number, _ in leftovers] == [2]


def test_the_import_of_another_part_is_not_reported() -> None:
    source = "from ..parts.mailbox.box import Box\nfrom ..parts import mailbox\nfrom .mail import send\n'mail'\n"
    assert list(without_part.leftovers(Path("django_skipqueue/queue/claim.py"), source, "mail")) == []


def test_a_part_is_removed_with_the_parts_that_depend_on_it(tmp_path: Path) -> None:
    for name, depends in {"mail": (), "post": ("mail",), "bills": ("post", "x"), "x": ()}.items():
        folder = tmp_path / without_part.PARTS / name
        folder.mkdir(parents=True)
        (folder / "part.py").write_text(f"PART = Part(name={name!r}, depends={depends!r})\n")
    assert without_part.with_dependants(tmp_path, "mail") == ["mail", "post", "bills"]


def test_the_copy_keeps_the_tests_of_the_core_and_the_modules_that_they_need(tmp_path: Path) -> None:
    mark = ".".join(("pytest", "mark", "core"))  # joined, so that this module itself has no such mark
    sources = {
        "tests/conftest.py": "from .fixtures import row\n",
        "tests/fixtures.py": "",
        "tests/jobs/test_defer.py": f"from ..app import rows\npytestmark = {mark}\nTASK = 'tests.app.jobs.add'\n",
        "tests/jobs/test_mail.py": "from ..app import mails\n",
        "tests/app/rows.py": "from . import numbers\n",
        "tests/app/numbers.py": "",
        "tests/app/jobs.py": "",
        "tests/app/mails.py": "",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    needed_paths = without_part.needed_by_core(tmp_path, set(map(Path, sources)))
    assert set(map(Path, sources)) - needed_paths == {Path("tests/jobs/test_mail.py"), Path("tests/app/mails.py")}
