"""Gettext finds every text of the code, Django shows a language that somebody adds, and the tests find its faults.

The package has no translation yet. These tests check translations that somebody adds to `django_skipqueue/locale`.
`tests/console/admin/test_translation.py` checks the pages.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from babel.messages import Catalog
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation import gettext, ngettext

import django_skipqueue

from .harness.languages import LANGUAGE, Text, bracketed

PACKAGE = Path(django_skipqueue.__file__).parent
RECIPE = re.findall(r"/django-admin' (.+)", (PACKAGE.parent / "Makefile").read_text())
"""The commands of `make messages`."""
TRANSLATING_FUNCTIONS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2, "ngettext_lazy": 2}
"""The functions that translate a text, with the number of their arguments that are texts."""
PLACEHOLDER_OR_TAG = re.compile(r"%(?:\(\w+\))?[a-z%]|</?\w+>")


def read(path: Path) -> Catalog:
    """The messages of a `.po` or a `.mo` file."""
    with path.open("rb") as file:
        return read_mo(file) if path.suffix == ".mo" else read_po(file)


def translations_by_text(messages: Catalog) -> dict[Text, Text]:
    """Each text with its translation. Both are strings, or tuples of singular and plural forms."""
    return {_plain(message.id): _plain(message.string) for message in messages if message.id}


def _plain(text: object) -> Text:
    return tuple(text) if isinstance(text, list | tuple) else str(text)


def plural_forms(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def texts_in_python() -> Iterator[tuple[str, Text | None]]:
    """Yield each line of the code that has a text translated, with the text, or `None` if it is not a literal."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TRANSLATING_FUNCTIONS:
                arguments = node.args[: TRANSLATING_FUNCTIONS[node.func.id]]
                literals = tuple(str(argument.value) for argument in arguments if isinstance(argument, ast.Constant))
                are_literal = len(literals) == len(arguments)
                text: Text | None = (literals[0] if len(literals) == 1 else literals) if are_literal else None
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


@pytest.fixture(scope="module")
def added_language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a language that was added to a copy of the package, as CONTRIBUTING.md describes.

    Each translation is the text in brackets.
    """
    if not shutil.which("xgettext") and not os.environ.get("SKIPQUEUE_REQUIRE_GETTEXT"):
        pytest.skip("the tools of GNU gettext are not installed")
    package_copy = tmp_path_factory.mktemp("added") / PACKAGE.name
    shutil.copytree(PACKAGE, package_copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    folder = package_copy / "locale" / LANGUAGE / "LC_MESSAGES"
    folder.mkdir(parents=True)
    make_messages(package_copy)
    messages = read(folder / "django.po")
    assert not any(
        form for translation in translations_by_text(messages).values() for form in plural_forms(translation)
    )
    messages.fuzzy = False
    for message in messages:
        if message.id:
            message.string = tuple(map(bracketed, message.id)) if message.pluralizable else bracketed(str(message.id))
    with (folder / "django.po").open("wb") as file:
        write_po(file, messages)
    make_messages(package_copy)
    return folder


def make_messages(package: Path) -> None:
    """Run the commands of `make messages`."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    for command in RECIPE:
        command_line = [sys.executable, "-P", "-m", "django", *command.split()]
        subprocess.run(command_line, cwd=package, env=environment, check=True, stdout=subprocess.DEVNULL)


def faults_of_language(folder: Path) -> Iterator[str]:
    """Yield the faults of the files of a language."""
    messages = read(folder / "django.po")
    translations = translations_by_text(messages)
    yield from (f"a guess: {message.id}" for message in messages if message.fuzzy)
    yield from (f"obsolete: {message}" for message in messages.obsolete)
    for text, translation in translations.items():
        if not all(plural_forms(translation)):
            yield f"not translated: {text}"
        elif not has_placeholders(text, translation):
            yield f"other placeholders or tags: {text}"
    if translations_by_text(read(folder / "django.mo")) != translations:
        yield "django.mo is not made of django.po"
    for path in Path(django.__file__).parent.rglob(f"locale/{folder.parent.name}/LC_MESSAGES/django.po"):
        # The package's translations replace Django's on all pages of a project.
        for text, translation in translations_by_text(read(path)).items():
            if all(plural_forms(translation)) and translations.get(text, translation) != translation:
                yield f"not as in Django: {text}"


def has_placeholders(text: Text, translation: Text) -> bool:
    """Whether each form has the placeholders and the tags of the singular or the plural that it translates."""
    singular, plural = plural_forms(text)[0], plural_forms(text)[-1]
    return all(
        Counter(PLACEHOLDER_OR_TAG.findall(form)) == Counter(PLACEHOLDER_OR_TAG.findall(plural if number else singular))
        for number, form in enumerate(plural_forms(translation))
    )


def test_every_text_in_the_code_is_a_literal() -> None:
    """The program xgettext only finds literals, and not f-strings, for example."""
    texts_by_line = list(texts_in_python())
    assert len(texts_by_line) > 500
    assert [line for line, text in texts_by_line if text is None] == []


def test_gettext_finds_every_text_of_the_code(added_language: Path) -> None:
    translations = translations_by_text(read(added_language / "django.po"))
    assert [(line, text) for line, text in texts_in_python() if text not in translations] == []


def test_a_language_that_somebody_adds_is_shown(added_language: Path, settings: Any) -> None:
    settings.LOCALE_PATHS = [added_language.parents[1]]
    settings.LANGUAGE_CODE = LANGUAGE
    translations = translations_by_text(read(added_language / "django.po"))
    assert len(translations) > 500
    for text in translations:
        if isinstance(text, str):
            assert gettext(text) == bracketed(text)
        else:
            singular, plural = text
            assert [ngettext(singular, plural, number) for number in (1, 2)] == [*map(bracketed, text)]


def test_every_language_of_the_package_is_complete(added_language: Path) -> None:
    for folder in (PACKAGE / "locale").glob("*/LC_MESSAGES"):
        assert list(faults_of_language(folder)) == [], folder
        assert set(translations_by_text(read(folder / "django.po"))) == set(
            translations_by_text(read(added_language / "django.po"))
        ), "type `make messages`"


HEADER = r"""
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

"""

# An entry of a .po file, and the fault that it has.
FAULTY_ENTRIES = {
    'msgid "Retry"\nmsgstr "Reprovi"': "django.mo is not made of django.po",
    'msgid "Retry"\nmsgstr ""': "not translated: Retry",
    '#, fuzzy\nmsgid "Retry"\nmsgstr "Reprovi"': "a guess: Retry",
    '#~ msgid "Retry"\n#~ msgstr "Reprovi"': "obsolete: Retry",
    'msgid "job %(id)s"\nmsgstr "tasko"': "other placeholders or tags: job %(id)s",
    'msgid "<b>now</b>"\nmsgstr "nun"': "other placeholders or tags: <b>now</b>",
    'msgid "1"\nmsgid_plural "%(n)s"\nmsgstr[0] "1"\nmsgstr[1] "2"': "other placeholders or tags: ('1', '%(n)s')",
    'msgid "Monday"\nmsgstr "dimanĉo"': "not as in Django: Monday",
}


def test_each_fault_of_a_language_is_found(added_language: Path, tmp_path: Path) -> None:
    folder = tmp_path / LANGUAGE / "LC_MESSAGES"
    folder.mkdir(parents=True)
    shutil.copy(added_language / "django.mo", folder)
    for entry, fault in FAULTY_ENTRIES.items():
        (folder / "django.po").write_text(f"{HEADER}{entry}\n")
        assert fault in list(faults_of_language(folder))
    (folder / "django.po").write_text(f'{HEADER}msgid "Monday"\nmsgstr "lundo"\n')
    assert list(faults_of_language(folder)) == ["django.mo is not made of django.po"]


def test_a_complete_language_has_no_fault(added_language: Path) -> None:
    """The language whose texts are in brackets is complete, but differs from Django's translations."""
    assert {fault.partition(":")[0] for fault in faults_of_language(added_language)} == {"not as in Django"}
