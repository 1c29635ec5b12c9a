"""The documentation explains the code of every rule, and each shell command of a finding can be parsed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

import django_skipqueue
from django_skipqueue.console import rules
from django_skipqueue.console.rules.examination import all_rules

PAGE = Path(django_skipqueue.__file__).parents[1] / "docs/how-to/doctor.md"
SOURCES = [
    *Path(rules.__file__).parent.glob("*.py"),
    *Path(django_skipqueue.__file__).parent.glob("*/*/console.py"),
    *Path(django_skipqueue.__file__).parent.glob("*/*/rules.py"),
]


def finding_calls() -> Iterator[ast.Call]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "Finding.of"):
                yield node


CODES = {rule.code for rule in all_rules()}

CODES_WITHOUT_A_RULE = {"check-timed-out", "check-not-allowed", "check-failed", "database-unusable"}


def test_every_finding_in_the_code_has_the_code_of_a_rule() -> None:
    codes_of_findings = {str(call.args[0].value) for call in finding_calls() if isinstance(call.args[0], ast.Constant)}
    assert CODES_WITHOUT_A_RULE <= codes_of_findings <= CODES | CODES_WITHOUT_A_RULE


def test_the_doctor_page_documents_every_code() -> None:
    documented = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert set(documented) == CODES | CODES_WITHOUT_A_RULE
    assert len(documented) == len(set(documented))


def test_the_doctor_page_lists_the_watched_rules() -> None:
    (listed,) = re.findall(r"^The rules of the verdict are (.*?)\. ", PAGE.read_text(), re.MULTILINE)
    assert sorted(re.findall("`(.*?)`", listed)) == sorted(rule.code for rule in all_rules() if rule.is_watched)


def test_the_settings_page_documents_the_threshold_of_every_rule() -> None:
    page_text = (PAGE.parents[1] / "reference/settings.md").read_text()
    documented = {
        (code, float(default), by_queue == "yes")
        for default, code, by_queue in re.findall(
            r"^\| ([\d.]+) \| `([\w-]+)` \|.*\| (\w*) ?\|$", page_text, re.MULTILINE
        )
    }
    thresholds = [rule.threshold for rule in all_rules() if rule.threshold]
    assert documented == {(threshold.code, threshold.default, threshold.has_queues) for threshold in thresholds}
    assert all(rule.threshold is None or rule.threshold.code == rule.code for rule in all_rules())


def finding_commands() -> Iterator[str]:
    """Yield the shell commands in the source of the rules, with 1 in place of each value."""
    for call in finding_calls():
        nodes = list(ast.walk(call))
        nested_pieces = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if node in nested_pieces:  # a piece of an f-string is read with its f-string
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts)
            if text.startswith("python manage.py"):
                yield text


@pytest.mark.parametrize("command", sorted(set(finding_commands())))
def test_the_command_of_a_finding_can_be_parsed(command: str) -> None:
    name, *arguments = shlex.split(command)[2:]
    load_command_class("django_skipqueue", name).create_parser("manage.py", name).parse_args(arguments)
