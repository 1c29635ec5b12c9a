"""The dashboard for Grafana and the rules for Prometheus: valid, and about metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_skipqueue.console.metrics.scrape import metrics, with_database

STATIC = Path(__file__).parents[3] / "docs/_static"
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


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for rule in alert_rules():
        yield rule["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield str(variable["query"])


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r'(?<!")\bskipqueue_\w+', expression))


def test_an_expression_names_metrics_and_labels_that_exist(subtests: pytest.Subtests) -> None:
    for expression in sorted(set(expressions())):
        with subtests.test(expression=expression):
            assert metric_names(expression) <= LABELS.keys()
            known = {label for name in metric_names(expression) for label in LABELS[name]}
            for selector in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
                assert {label.strip() for label in selector.split(",")} <= known
            for selector in re.findall(r"{([^}]*)}", expression):
                assert set(re.findall(r"(\w+)=", selector)) <= known or selector.startswith("'query'")
            for opening, closing in ("()", "{}", "[]"):
                assert expression.count(opening) == expression.count(closing)


def test_metric_names_finds_each_metric_in_an_expression() -> None:
    assert metric_names("sum(rate(skipqueue_wait_seconds_bucket[5m])) / skipqueue_workers") == {
        "skipqueue_wait_seconds_bucket",
        "skipqueue_workers",
    }


def test_every_metric_is_on_the_dashboard() -> None:
    names_on_dashboard = set[str]().union(
        *(metric_names(target["expr"]) for panel in panels() for target in panel["targets"])
    )
    metrics_on_dashboard = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names_on_dashboard}
    assert {metric.name for metric in metrics()} == metrics_on_dashboard


def test_each_panel_shows_the_chosen_databases() -> None:
    for panel in panels():
        for target in panel["targets"]:
            series = re.findall(r'(?<!")\bskipqueue_\w+({[^}]*})?', target["expr"])
            assert all('database=~"$database"' in selector for selector in series), target["expr"]
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["database"]["allValue"] == ".*", "with one database, the series have no label `database`"


def test_each_alert_is_about_one_database() -> None:
    """An alert is raised for a series that exceeds the threshold. Its summary names the database of the series."""
    alerts_of_all_databases = {"SkipqueueFailedShare": "a task", "SkipqueueNoMetrics": "everything"}
    for rule in alert_rules():
        grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        if rule["alert"] not in alerts_of_all_databases:
            assert all("database" in labels for labels in grouped), rule["alert"]
            assert "$labels.database" in rule["annotations"]["summary"]


def test_panels_do_not_overlap_and_have_a_title_and_a_description() -> None:
    cells_taken: set[tuple[int, int]] = set()
    for panel in panels():
        position = panel["gridPos"]
        cells = {
            (position["x"] + right, position["y"] + down)
            for right in range(position["w"])
            for down in range(position["h"])
        }
        assert not cells & cells_taken, panel["title"]
        assert all(column < 24 for column, _ in cells)
        cells_taken |= cells
        assert panel["title"]
        assert panel["description"].endswith(".")
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_alert_rules_have_a_name_a_severity_a_summary_and_a_description() -> None:
    assert len({rule["alert"] for rule in alert_rules()}) == len(alert_rules())
    for rule in alert_rules():
        assert re.fullmatch(r"Skipqueue[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert any(label in LABELS[name] for name in metric_names(rule["expr"]))


def test_important_metrics_have_an_alert_rule(subtests: pytest.Subtests) -> None:
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
            assert any(name in metric_names(rule["expr"]) for rule in alert_rules())


def test_the_how_to_page_lists_every_alert_rule() -> None:
    page = (STATIC.parent / "how-to/observe.md").read_text()
    assert re.findall(r"^\| `(Skipqueue\w+)` \|", page, re.MULTILINE) == [rule["alert"] for rule in alert_rules()]
