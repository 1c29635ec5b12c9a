"""Templates of web addresses, such as `https://example.com/{task}`, which become links on the page of a job.

A template must begin with `http://` or `https://` and a fixed host. Every value of the job is quoted when it is put in,
so that no value changes the host, or leaves its place in the path.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

FIELDS = (
    "job_id", "task", "queue_name", "worker", "attempt", "enqueued_at", "enqueued_at_ms", "started_at", "started_at_ms",
    "finished_at", "finished_at_ms", "sentry_event_id",
)  # fmt: skip
"""The names that a template may have in braces, in addition to `metadata[key]`."""

OF_AN_ATTEMPT = "sentry_event_id"
"""The only field whose value belongs to an attempt. The values of all other fields belong to the job."""

START = re.compile(r"https?://[^\s/?#{}@]+(?=[/?#]|\Z)")
FIELD = re.compile(r"{([^{}]*)}")
DOTS = re.compile(r"[^?#]*/\.\.?(?:[/?#]|\Z)")  # a path segment `.` or `..`, which browsers resolve even if quoted
METADATA = re.compile(r"metadata\[([^\][]+)\]")


def template_problem(template: object) -> str | None:
    """Return the end of the sentence "it must be …" if the template is not valid; `None` if it is valid."""
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
    """Fill the template with quoted values. Return `None` if a field has no value, or if its value is `.` or `..`."""
    value_by_field = {name: _value(name, values, metadata) for name in fields_of(template)}
    if None in value_by_field.values():
        return None
    filled = FIELD.sub(lambda field: quote(str(value_by_field[field[1]]), safe=""), template)
    return None if DOTS.match(filled) else filled


def _value(name: str, values: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
    key = METADATA.fullmatch(name)
    value = metadata.get(key[1]) if key else values.get(name)
    return value if isinstance(value, str | int | float) and value != "" else None


def problems(name: str, templates: object) -> Iterator[str]:
    """Yield one sentence for each template that is not valid. `name` is the name of the setting in these sentences."""
    if not isinstance(templates, dict):
        yield f"{name} must be a dict of labels and addresses, not {templates!r}."
        return
    for label, template in templates.items():
        if not isinstance(label, str) or not label.strip():
            yield f"{name} has the label {label!r}; a label is a str that is not empty."
        elif problem := template_problem(template):
            yield f"{name}[{label!r}] must be {problem}, not {template!r}."
