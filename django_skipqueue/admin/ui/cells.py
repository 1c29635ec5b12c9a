"""Cells of a list: short, and safe whatever the row carries."""

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ...models import Job
from ...operators.job_states import STATES, state_of

CELL_LIMIT = 120
"""Characters of anything that stands in a cell."""


def badge(status: str, label: str | Promise) -> SafeString:
    return format_html('<span class="skipqueue-badge" data-status="{}">{}</span>', status, label)


def badge_of(job: Job) -> SafeString:
    state = state_of(job)
    return badge(state, STATES[state])


def shortened(text: str) -> str:
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"
