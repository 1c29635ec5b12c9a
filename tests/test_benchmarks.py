"""The benchmarks compute their figures correctly, and can be run."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connection

from benchmarks import check, databases, figures
from benchmarks.peers import PEERS, PEERS_WITH_LIMITS, PEERS_WITH_STEPS, limits, pairs, steps
from benchmarks.peers.__main__ import row
from benchmarks.peers.environments import Environment, NotInstalled, read_head
from benchmarks.peers.trials import enough
from benchmarks.sizes import Sizes
from scripts.embedded_rabbitmq import RabbitMQ

ROOT = Path(__file__).resolve().parent.parent
DRAIN = check.RATIOS["drain ÷ floor"]
TRANSACTIONS = check.RATIOS["transactions per 1,000 jobs"]


def run_module(*arguments: str) -> str:
    """Run a module in a new Python process, on the database server of the tests, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_each_figure_has_its_own_median() -> None:
    measurements = [{"jobs/s": 1.0, "ms": 9.0}, {"jobs/s": 5.0, "ms": 7.0}, {"jobs/s": 2.0, "ms": 8.0}]
    assert figures.median_of(measurements) == {"jobs/s": 2.0, "ms": 8.0}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 51), (0.99, 100), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert figures.percentile(list(range(100, 0, -1)), share) == expected


@pytest.mark.parametrize(("value", "expected"), [(22777.4, "22,777"), (99.94, "99.9"), (0.9312, "0.931"), (0, "0")])
def test_a_figure_is_shown_with_three_digits_or_as_a_whole_number(value: float, expected: str) -> None:
    assert figures.show(value) == expected


def test_a_table_is_markdown() -> None:
    assert figures.markdown_head(["row", "figure"]) == "| row | figure |\n|---|---|"
    assert figures.markdown_row(["`drain`", figures.phrase({"jobs/s": 22777, "ratio": 0.5})]) == (
        "| `drain` | 22,777 jobs/s, 0.5 ratio |"
    )


def test_every_size_of_a_benchmark_is_a_command_line_option() -> None:
    parser = argparse.ArgumentParser()
    Sizes.add_options(parser)
    assert Sizes.from_options(parser.parse_args([])) == Sizes()
    assert Sizes.from_options(parser.parse_args(["--finished", "10"])) == Sizes(finished=10)


@pytest.mark.parametrize(
    # Against a baseline of 0.5. A higher drain ratio is better; fewer transactions are better.
    ("ratio", "measured", "fails"),
    [
        (DRAIN, 0.41, False),
        (DRAIN, 0.39, True),
        (DRAIN, 0.9, False),
        (TRANSACTIONS, 0.6, False),
        (TRANSACTIONS, 0.7, True),
    ],
)
def test_a_ratio_fails_when_it_is_worse_by_more_than_a_fifth(ratio: check.Ratio, measured: float, fails: bool) -> None:
    assert check.judge("it", ratio, 0.5, lambda _: measured).fails is fails


def test_a_ratio_that_fails_once_is_measured_again() -> None:
    measurements = iter([0.1, 0.5])
    assert not check.judge("it", DRAIN, 0.5, lambda _: next(measurements)).fails
    assert not list(measurements)


def test_a_ratio_that_holds_is_measured_once() -> None:
    measurements = iter([0.5, 0.1])
    assert not check.judge("it", DRAIN, 0.5, lambda _: next(measurements)).fails
    assert list(measurements) == [0.1]


def test_the_baseline_has_every_ratio() -> None:
    assert json.loads(check.BASELINE.read_text()).keys() == check.RATIOS.keys()


def test_the_check_of_all_ratios_prints_the_ratio_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = dict.fromkeys(check.RATIOS, 1.0)
    monkeypatch.setattr(check, "measure", lambda ratio: 0.5 if ratio is DRAIN else 1.0)
    assert not check.check(baseline)
    assert "| drain ÷ floor | 1 | 0.5 | -50% | FAILS |" in capsys.readouterr().out
    monkeypatch.setattr(check, "measure", lambda _: 1.0)
    assert check.check(baseline)


@pytest.mark.parametrize("peer", sorted({*PEERS, *PEERS_WITH_STEPS}))
def test_the_script_block_of_a_peer_lists_its_dependencies(peer: str) -> None:
    assert Environment.of(peer).dependencies


def test_a_module_without_a_script_block_is_no_peer() -> None:
    with pytest.raises(ValueError, match="no inline script block"):
        read_head('"""Nothing but a docstring."""\n')


def test_the_error_for_a_missing_program_of_a_peer_names_it() -> None:
    environment = Environment(peer="nobody", dependencies=[], programs=["no-such-program"])
    with pytest.raises(NotInstalled, match="there is no no-such-program"):
        environment.install()


@pytest.mark.parametrize(("rate", "expected"), [(100, 2_000), (10, 1_000), (1_000_000, 50_000)])
def test_a_slow_peer_gets_fewer_jobs(rate: float, expected: int) -> None:
    assert enough(rate, jobs=50_000, seconds=20) == expected


def test_the_row_of_a_peer_has_its_figures_beside_ours_or_why_there_are_none() -> None:
    ours = {"drain default": 200.0, "drain best": 400.0, "enqueue one": 10.0, "enqueue bulk": 30.0}
    their_figures = {name: value / 2 for name, value in ours.items()} | {"ms p50": 3.0, "ms p99": 5.0}
    row_of_peer = row({"title": "other 1.0", "history": "row", "figures": their_figures}, ours)
    assert row_of_peer == "| other 1.0 | row | 100 | 200 | 5 | 15 | 3 / 5 | 2, 2, 2, 2 |"
    assert "not measured: there is no redis-server" in row({"title": "x", "reason": "there is no redis-server"}, ours)


def test_the_row_of_a_limited_drain_has_its_ratio_to_the_plain_drain() -> None:
    assert set(PEERS_WITH_LIMITS) < set(PEERS)
    ours = {"drain_limited": 60.0, "drain_best": 200.0}
    peer = {"title": "other 1.0", "figures": {"drain_limited": 20.0, "drain_best": 40.0}}
    assert limits.row({"title": "ours", "figures": ours}, ours) == "| ours | 60 | 200 | 0.3 |  |"
    assert limits.row(peer, ours) == "| other 1.0 | 20 | 40 | 0.5 | 3 |"
    assert "not measured: it failed" in limits.row({"title": "x", "reason": "it failed"}, ours)


def test_the_row_of_carried_drains_has_the_ratio_of_each_pair() -> None:
    rates = {"default": [(100.0, 40.0), (200.0, 60.0), (400.0, 200.0)], "best": [(1_000.0, 600.0)]}
    row_of_pairs = pairs.row({"title": "carried", "rates": rates}, None)
    assert row_of_pairs == "| carried | 200 and 60 | 0.4 (0.4, 0.3, 0.5) | 1,000 and 600 | 0.6 (0.6) |"
    assert "not measured: there is no rabbitmq-server" in pairs.row(
        {"title": "x", "reason": "there is no rabbitmq-server"}, None
    )


def test_the_row_of_workflows_has_their_rates_beside_ours() -> None:
    ours = {"steps/s": 800.0, "workflows/s": 90.0}
    theirs = {"steps/s": 200.0, "workflows/s": 60.0}
    assert steps.row({"title": "ours", "figures": ours}, ours) == "| ours | 800 | 90 |  |"
    assert steps.row({"title": "other 1.0", "figures": theirs}, ours) == "| other 1.0 | 200 | 60 | 4, 1.5 |"
    assert "not measured: it failed" in steps.row({"title": "x", "reason": "it failed"}, ours)


@pytest.mark.slow  # it runs a benchmark
@pytest.mark.parametrize("benchmark", ["drain", "floor"])
def test_a_benchmark_can_be_run_and_writes_its_figures(benchmark: str, tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    size_options = ("--jobs", "500", "--repeat", "1")
    table = run_module("benchmarks", benchmark, *size_options, "--json", str(figures_file))
    figures_of_run = json.loads(figures_file.read_text())
    assert figures_of_run["rows"][benchmark]["jobs/s"] > 0
    assert f"| `{benchmark}` |" in table
    assert figures_of_run["machine"] in table


@pytest.mark.slow  # it starts a node of RabbitMQ and five workers of Celery
def test_a_relay_opens_one_connection_for_all_celery_workers(tmp_path: Path, rabbitmq_node: RabbitMQ) -> None:
    figures_file = tmp_path / "figures.json"
    run_module("benchmarks", "carried", "--jobs", "500", "--repeat", "1", "--json", str(figures_file))
    figures = json.loads(figures_file.read_text())["rows"]["carried"]
    assert figures.pop("jobs/s handed over") > 0
    assert figures == {"connections, 1 Celery worker": 2, "connections, 4 Celery workers": 2}


def test_the_database_of_a_measurement_is_dropped_even_if_it_fails(db: None) -> None:
    environments = []
    with suppress(RuntimeError), databases.fresh_database() as environment:
        environments.append(environment)
        assert _database_exists(environment)
        raise RuntimeError("the measurement fails")
    assert not _database_exists(*environments)


def test_defer_asks_the_database_once(tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    run_module("benchmarks", "queries", "--repeat", "1", "--json", str(figures_file))
    assert json.loads(figures_file.read_text())["rows"]["queries"] == {"in the transaction": 1, "in all": 1}


def test_every_benchmark_has_a_docstring() -> None:
    rows = importlib.import_module("benchmarks.rows").ROWS
    assert all((row.__doc__ or "").strip() for row in rows.values())


def _database_exists(environment: dict[str, str]) -> bool:
    name = environment["DATABASE_URL"].partition("?")[0].rpartition("/")[2]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
        return cursor.fetchone() is not None
