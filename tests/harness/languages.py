"""Languages for a test: one that puts each text into brackets, and Esperanto with the texts that a test translates."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from babel.messages import Catalog
from babel.messages.mofile import write_mo
from django.utils import translation

LANGUAGE = "eo"
"""A language that Django knows, so that a project only needs a catalogue of translations."""

Text: TypeAlias = str | tuple[str, ...]
"""A string, or its singular and its plural form."""


def bracketed(text: str) -> str:
    """A translation that differs from each text of the package, and has all of its placeholders."""
    return f"⟦{text}⟧"


def put_into_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django put each text that goes through gettext into brackets, its own texts included."""

    def ngettext(singular: str, plural: str, number: float) -> str:
        return bracketed(singular if number == 1 else plural)

    functions: dict[str, Any] = {
        "gettext": bracketed,
        "ngettext": ngettext,
        "pgettext": lambda context, message: bracketed(message),
        "npgettext": lambda context, *texts: ngettext(*texts),
    }
    for name, function in functions.items():
        monkeypatch.setattr(translation._trans, name, function)  # type: ignore[attr-defined]


def outside_of_brackets(text: str) -> set[str]:
    """The words of a text that were not translated by gettext, so they are outside of brackets."""
    replaced = 1
    while replaced:
        text, replaced = re.subn("⟦[^⟦⟧]*⟧", " ", text)
    return set(re.findall(r"[^\W\d_]+", text))


def speak(settings: Any, home: Path, translations: Mapping[Text, Text]) -> None:
    """Let the project speak Esperanto until the test ends: the catalogue with these translations is below `home`."""
    catalog = Catalog(locale=LANGUAGE)
    for text, translated in translations.items():
        catalog.add(text, translated)
    folder = home / LANGUAGE / "LC_MESSAGES"
    folder.mkdir(parents=True)
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, catalog)
    settings.LOCALE_PATHS = [home]
    settings.LANGUAGE_CODE = LANGUAGE
