"""Cells of a list: short, and safe whatever the row carries."""

import json
from typing import Any

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ....models import Job
from ....values.redaction import Redacted
from ...arguments import names_in_order
from ...job_states import STATES, state_of

CELL_LIMIT = 120
"""Characters of anything that stands in a cell."""


def badge(status: str, label: str | Promise) -> SafeString:
    return format_html('<span class="skipqueue-badge" data-status="{}">{}</span>', status, label)


def badge_of(job: Job) -> SafeString:
    state = state_of(job)
    return badge(state, STATES[state])


def shortened(text: str) -> str:
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def arguments(task: str, call: Redacted) -> str:
    """The arguments as in a call: `payment_id=42, email="x"`; a value alone where its place has no known name."""
    names = names_in_order(task, call.args)
    shown = [f"{name}={_dumped(value)}" for name, value in zip(names, call.args, strict=False)]
    shown += [_dumped(value) for value in call.args[len(names) :]]
    shown += [f"{name}={_dumped(value)}" for name, value in call.kwargs.items()]
    return shortened(", ".join(shown))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
