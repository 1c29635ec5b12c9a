"""Cells of a list: short, and safe whatever the row carries."""

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

CELL_LIMIT = 120
"""Characters of anything that stands in a cell."""


def badge(status: str, label: str | Promise) -> SafeString:
    """A word in the colour of its status."""
    return format_html('<span class="skipqueue-badge" data-status="{}">{}</span>', status, label)


def shortened(text: str) -> str:
    """The beginning of the text, as much as fits into a cell."""
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"
