"""The files of the translations: complete, compiled, and with the placeholders of the texts that they translate.

`tests/admin/test_translation.py` looks at the pages.
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
from typing import TypeAlias

import django
import pytest
from babel.messages import Catalog
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po

import django_skipqueue

PACKAGE = Path(django_skipqueue.__file__).parent
LANGUAGES = sorted(path.name for path in (PACKAGE / "locale").iterdir())
FUNCTIONS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2, "ngettext_lazy": 2}
"""The functions that translate a text, with the number of their arguments that are texts."""
PLACEHOLDER_OR_TAG = re.compile(r"%(?:\(\w+\))?[a-z%]|</?\w+>")

Text: TypeAlias = str | tuple[str, ...]

needs_gettext = pytest.mark.skipif(
    not shutil.which("xgettext") and not os.environ.get("SKIPQUEUE_REQUIRE_GETTEXT"),
    reason="the tools of GNU gettext are not installed",
)


def read(path: Path) -> Catalog:
    """The messages of a `.po` or a `.mo` file."""
    with path.open("rb") as file:
        return read_mo(file) if path.suffix == ".mo" else read_po(file)


def catalog(language: str, suffix: str = "po") -> Catalog:
    return read(PACKAGE / f"locale/{language}/LC_MESSAGES/django.{suffix}")


def texts(messages: Catalog) -> dict[Text, Text]:
    """Each text with its translation: both a string, or singular and plural forms."""
    return {_plain(message.id): _plain(message.string) for message in messages if message.id}


def _plain(text: object) -> Text:
    return tuple(text) if isinstance(text, list | tuple) else str(text)


def forms(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def texts_in_python() -> Iterator[tuple[str, Text | None]]:
    """Each place in the code that has a text translated, with the text; `None` where that is no literal."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                arguments = node.args[: FUNCTIONS[node.func.id]]
                found = tuple(str(each.value) for each in arguments if isinstance(each, ast.Constant))
                is_literal = len(found) == len(arguments)
                text: Text | None = (found[0] if len(found) == 1 else found) if is_literal else None
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated(language: str) -> None:
    messages = catalog(language)
    assert not messages.fuzzy, "the header is marked as a guess"
    assert [message.id for message in messages if message.fuzzy] == []
    assert list(messages.obsolete) == []
    assert [text for text, translation in texts(messages).items() if not all(forms(translation))] == []


@needs_gettext
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_file_has_the_texts_of_code_and_templates(language: str, tmp_path: Path) -> None:
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-P", "-m", "django", "makemessages", "--locale", language]
    subprocess.run(command, cwd=copy, env=environment, check=True)
    extracted = read(copy / f"locale/{language}/LC_MESSAGES/django.po")
    assert set(texts(catalog(language))) == set(texts(extracted)), "type `make messages`"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_file_has_the_texts_of_code_that_gettext_would_not_find(language: str) -> None:
    """Such as one within an f-string."""
    known = texts(catalog(language))
    assert [(place, text) for place, text in texts_in_python() if text not in known] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_file_is_up_to_date(language: str) -> None:
    assert texts(catalog(language, "mo")) == texts(catalog(language)), "type `make messages`"


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_placeholders_and_tags_of_their_texts(language: str) -> None:
    wrong = []
    for text, translation in texts(catalog(language)).items():
        singular, plural = forms(text)[0], forms(text)[-1]
        for number, form in enumerate(forms(translation)):
            source = plural if number else singular
            if Counter(PLACEHOLDER_OR_TAG.findall(form)) != Counter(PLACEHOLDER_OR_TAG.findall(source)):
                wrong.append((source, form))
    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_of_django_are_translated_as_django_does(language: str) -> None:
    """Ours take the place of Django's on all pages of a project."""
    ours = texts(catalog(language))
    for path in Path(django.__file__).parent.rglob(f"locale/{language}/LC_MESSAGES/django.po"):
        theirs = texts(read(path))
        assert {text: ours[text] for text in ours.keys() & theirs.keys()}.items() <= theirs.items(), path
