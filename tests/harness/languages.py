"""Two languages for tests: one puts each text into brackets, and Esperanto has the translations of the test."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from babel.messages import Catalog
from babel.messages.mofile import write_mo
from django.utils import translation

LANGUAGE = "eo"
"""Esperanto. Django knows it, so a project only needs a catalogue of translations."""

Text: TypeAlias = str | tuple[str, ...]
"""A string, or its singular and its plural form."""


def bracketed(text: str) -> str:
    """The text in brackets, as a translation that differs from the text, but has its placeholders."""
    return f"⟦{text}⟧"


def put_into_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django translate each text, even its own texts, by putting the text into brackets."""

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
    """The words of a page outside brackets, which gettext has not translated."""
    replaced = 1
    while replaced:
        text, replaced = re.subn("⟦[^⟦⟧]*⟧", " ", text)
    return set(re.findall(r"[^\W\d_]+", text))


def use_translations(settings: Any, home: Path, translations: Mapping[Text, Text]) -> None:
    """Set the language of the project to Esperanto until the test ends, with a catalogue of translations in `home`."""
    catalog = Catalog(locale=LANGUAGE)
    for text, translated in translations.items():
        catalog.add(text, translated)
    folder = home / LANGUAGE / "LC_MESSAGES"
    folder.mkdir(parents=True)
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, catalog)
    settings.LOCALE_PATHS = [home]
    settings.LANGUAGE_CODE = LANGUAGE
