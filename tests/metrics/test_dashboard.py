"""The dashboard for Grafana and the rules for Prometheus: valid, and about metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_skipqueue.console.metrics.scrape import metrics, with_database

STATIC = Path(__file__).parents[2] / "docs/_static"
DASHBOARD = json.loads((STATIC / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((STATIC / "prometheus-alerts.yml").read_text())

LABELS: dict[str, set[str]] = {}
"""The labels of each series by its name, if there are several databases."""
for metric in map(with_database, metrics()):
    if metric.kind == "histogram":
        LABELS[f"{metric.name}_bucket"] = {*metric.labels, "le"}
        LABELS[f"{metric.name}_sum"] = LABELS[f"{metric.name}_count"] = set(metric.labels)
    else:
        LABELS[metric.name] = set(metric.labels)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for rule in rules():
        yield rule["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield str(variable["query"])


def names(expression: str) -> set[str]:
    return set(re.findall(r'(?<!")\bskipqueue_\w+', expression))


def test_an_expression_names_metrics_and_labels_that_exist(subtests: pytest.Subtests) -> None:
    for expression in sorted(set(expressions())):
        with subtests.test(expression=expression):
            assert names(expression) <= LABELS.keys()
            known = {label for name in names(expression) for label in LABELS[name]}
            for given in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
                assert {label.strip() for label in given.split(",")} <= known
            for given in re.findall(r"{([^}]*)}", expression):
                assert set(re.findall(r"(\w+)=", given)) <= known or given.startswith("'query'")
            for opening, closing in ("()", "{}", "[]"):
                assert expression.count(opening) == expression.count(closing)


def test_the_reader_of_expressions_sees_each_name() -> None:
    assert names("sum(rate(skipqueue_wait_seconds_bucket[5m])) / skipqueue_workers") == {
        "skipqueue_wait_seconds_bucket",
        "skipqueue_workers",
    }


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set[str]().union(*(names(target["expr"]) for panel in panels() for target in panel["targets"]))
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {metric.name for metric in metrics()} == bases


def test_a_panel_is_of_the_databases_that_are_chosen() -> None:
    for panel in panels():
        for target in panel["targets"]:
            series = re.findall(r'(?<!")\bskipqueue_\w+({[^}]*})?', target["expr"])
            assert all('database=~"$database"' in selector for selector in series), target["expr"]
    chosen = {each["name"]: each for each in DASHBOARD["templating"]["list"]}["database"]
    assert chosen["allValue"] == ".*", "with one database no series has the label"


def test_an_alert_is_of_one_database() -> None:
    """A value above the threshold is found among several series, and the summary names the series."""
    of_all = {"SkipqueueFailedShare": "a task", "SkipqueueNoMetrics": "everything"}
    for rule in rules():
        grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        if rule["alert"] not in of_all:
            assert all("database" in labels for labels in grouped), rule["alert"]
            assert "$labels.database" in rule["annotations"]["summary"]


def test_panels_have_places_of_their_own_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(column < 24 for column, _ in cells)
        taken |= cells
        assert panel["title"]
        assert panel["description"].endswith(".")
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_rules_have_names_severities_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert re.fullmatch(r"Skipqueue[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert any(label in LABELS[name] for name in names(rule["expr"]))


def test_what_matters_has_a_rule(subtests: pytest.Subtests) -> None:
    for name in (
        "skipqueue_oldest_queued_seconds",
        "skipqueue_workers",
        "skipqueue_attempts_total",
        "skipqueue_jobs_recovered_total",
        "skipqueue_leases_lost_total",
        "skipqueue_prune_lag_seconds",
        "skipqueue_claim_pages",
        "skipqueue_claim_seconds_bucket",
        "skipqueue_schedule_late_seconds",
        "skipqueue_schedule_failed_runs",
        "skipqueue_longest_halt_seconds",
        "skipqueue_oldest_open_batch_seconds",
    ):
        with subtests.test(name):
            assert any(name in names(rule["expr"]) for rule in rules())


def test_the_how_to_has_every_rule() -> None:
    page = (STATIC.parent / "how-to/observe.md").read_text()
    assert re.findall(r"^\| `(Skipqueue\w+)` \|", page, re.MULTILINE) == [rule["alert"] for rule in rules()]
