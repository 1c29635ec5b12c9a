"""The public interface of the package equals the files of this folder. README.md has the rule for changes."""

import difflib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import admin, api, commands, errors, schema, settings, telemetry

pytestmark = pytest.mark.django_db

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
READERS: dict[str, Callable[[], Iterator[str]]] = {
    "admin.txt": admin.permissions,
    "api.txt": api.api,
    "checks.txt": errors.checks,
    "commands.txt": commands.commands,
    "errors.txt": errors.errors,
    "events.txt": telemetry.events,
    "logs.txt": telemetry.logs,
    "metrics.txt": telemetry.metrics,
    "schema.sql": schema.schema,
    "settings.txt": settings.settings,
    "signals.txt": telemetry.signals,
}
"""The function that makes the lines of each file from the package."""

MANAGERS = {
    "JobManager": "Job.objects",
    "JobQuerySet": "Job.objects",
    "QueueQuerySet": "Queue.objects",
    "WorkerQuerySet": "Worker.objects",
}
"""The name by which users reach the members of each class that they do not import."""


@pytest.mark.parametrize("file", READERS)
def test_the_package_matches_the_contract_file(file: str) -> None:
    lines = "".join(f"{line}\n" for line in sorted(set(READERS[file]())))
    if os.environ.get("SKIPQUEUE_WRITE_CONTRACT"):
        (FOLDER / file).write_text(lines)
    contract = (FOLDER / file).read_text()
    diff = "\n".join(difflib.unified_diff(contract.splitlines(), lines.splitlines(), file, "the package", lineterm=""))
    if diff:
        pytest.fail(f"{diff}\nTo keep this change: make contract. README.md has the rule.", pytrace=False)


def test_every_name_of_the_documentation_is_in_the_contract() -> None:
    contract = "\n".join([*api.api(), *telemetry.signals()])
    assert {name for name in documented() if not re.search(rf"(^|\.){name}\b", contract, re.MULTILINE)} == set()


def documented() -> Iterator[str]:
    """Yield the names that the documentation imports, and the names and members that the reference describes."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        for names in re.findall(r"^ *from django_skipqueue[\w.]* import ([\w, ]+)$", text, re.MULTILINE):
            yield from names.split(", ")
        pattern_of_directive = r"^\.\. auto(class|decorator|function|method):: ([\w.]+).*(?:\n   :members: (.+))?"
        for kind, path, members in re.findall(pattern_of_directive, text, re.MULTILINE):
            owner, _, name = path.rpartition(".")
            public_name = MANAGERS.get(name, name)
            yield f"{MANAGERS[owner.rpartition('.')[2]]}.{name}" if kind == "method" else public_name
            yield from (f"{public_name}.{member}" for member in members.split(", ") if member)
