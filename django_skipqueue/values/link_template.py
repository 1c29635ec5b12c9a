"""Addresses with fields in braces, which become links when the values of a job are put in. Pure.

Invariant: an address begins with `http://` or `https://` and a host that no value changes; every value is quoted, and
none leads out of its place in the path.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

FIELDS = (
    "job_id", "task", "queue_name", "worker", "attempt", "enqueued_at", "enqueued_at_ms", "started_at", "started_at_ms",
    "finished_at", "finished_at_ms", "sentry_event_id",
)  # fmt: skip
"""The names that may be in braces, beside `metadata[key]`."""

OF_AN_ATTEMPT = "sentry_event_id"
"""The field of an attempt; the other fields are of its job."""

START = re.compile(r"https?://[^\s/?#{}@]+(?=[/?#]|\Z)")
FIELD = re.compile(r"{([^{}]*)}")
DOTS = re.compile(r"[^?#]*/\.\.?(?:[/?#]|\Z)")  # browsers take a quoted dot for a dot
METADATA = re.compile(r"metadata\[([^\][]+)\]")


def template_problem(template: object) -> str | None:
    """The end of the sentence "it must be …"; `None` for a template that can be used."""
    if not isinstance(template, str) or not START.match(template):
        return "an address that begins with http:// or https:// and a host without fields"
    for name in fields_of(template):
        if name not in FIELDS and not METADATA.fullmatch(name):
            return f"an address whose fields are of {', '.join(FIELDS)} and metadata[key]"
    if re.search(r"[{}\s]", FIELD.sub("", template)):
        return "an address without spaces, and with each field in a pair of braces"
    return None


def fields_of(template: str) -> list[str]:
    return FIELD.findall(template)


def address(template: str, values: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The template with quoted values in its fields; `None` if a field has no value, or its value is dots."""
    found = {name: _value(name, values, metadata) for name in fields_of(template)}
    if None in found.values():
        return None
    filled = FIELD.sub(lambda field: quote(str(found[field[1]]), safe=""), template)
    return None if DOTS.match(filled) else filled


def _value(name: str, values: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
    key = METADATA.fullmatch(name)
    value = metadata.get(key[1]) if key else values.get(name)
    return value if isinstance(value, str | int | float) and value != "" else None


def problems(name: str, templates: object) -> Iterator[str]:
    """One sentence for each template that cannot be used. `name` is the setting's name in the sentence."""
    if not isinstance(templates, dict):
        yield f"{name} must be a dict of labels and addresses, not {templates!r}."
        return
    for label, template in templates.items():
        if not isinstance(label, str) or not label.strip():
            yield f"{name} has the label {label!r}; a label is a str that is not empty."
        elif problem := template_problem(template):
            yield f"{name}[{label!r}] must be {problem}, not {template!r}."
