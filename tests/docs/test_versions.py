"""The documentation promises exactly the versions on which the tests run."""

import re
import tomllib

from django_skipqueue.worker.preflight import OLDEST_POSTGRESQL
from scripts.embedded_postgres import POSTGRES_VERSION

from .test_reference import README, REFERENCE, ROOT

TABLE = re.findall(r"^\| (Python|Django|PostgreSQL) \| ([^(|]+)", (REFERENCE / "versions.md").read_text(), re.MULTILINE)
PROMISED = {name: re.findall(r"\d[\d.]*", versions) for name, versions in TABLE}


def test_the_versions_page_names_the_versions_that_the_ci_workflow_tests() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    matrix = workflow.partition("matrix:")[2].partition("services:")[0]
    for name, key in (("Python", "python"), ("Django", "django"), ("PostgreSQL", "postgres")):
        lines_of_versions = re.findall(rf"{key}: (?:\[.*?\]|\".*?\")", matrix)
        assert set(PROMISED[name]) == set(re.findall(r"\d[\d.]*", " ".join(lines_of_versions))), name


def test_the_classifiers_of_the_package_name_the_documented_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, prefix in (("Python", "Programming Language :: Python :: 3."), ("Django", "Framework :: Django :: ")):
        versions = [text.rpartition(" ")[2] for text in project["classifiers"] if text.startswith(prefix)]
        assert versions == PROMISED[name]
    assert project["requires-python"] == f">={PROMISED['Python'][0]}"
    assert f"django>={PROMISED['Django'][0]}" in project["dependencies"]


def test_ci_tests_the_oldest_and_the_newest_documented_postgresql() -> None:
    oldest, *_, newest = PROMISED["PostgreSQL"]
    assert oldest == str(OLDEST_POSTGRESQL)
    assert f"PG{oldest}=/usr/lib/postgresql/{oldest}/bin" in (ROOT / ".ci" / "run").read_text()
    assert newest == POSTGRES_VERSION, "the version of `make test`"


def test_ci_tests_the_documented_versions_of_celery_and_rabbitmq() -> None:
    page = (REFERENCE / "versions.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    oldest_versions = re.search(r"^\| Celery, .* \| (\d+\.\d+) with kombu (\d+\.\d+),", page, re.MULTILINE)
    assert oldest_versions
    assert set(extras["celery"]) == {f"celery>={oldest_versions[1]}", f"kombu>={oldest_versions[2]}"}
    assert f"OLD_CELERY={oldest_versions[1]}\n" in (ROOT / ".ci" / "run").read_text()
    (rabbitmq,) = re.findall(r"^\| RabbitMQ, .* \| (\d+\.\d+),", page, re.MULTILINE)
    page_about_relay = (ROOT / "docs" / "how-to" / "celery-relay.md").read_text()
    assert f"RabbitMQ {rabbitmq}." in page_about_relay


def test_the_readme_names_the_oldest_and_the_newest_versions() -> None:
    for name in ("Python", "PostgreSQL"):
        assert f"{name} {PROMISED[name][0]} to {PROMISED[name][-1]}" in README
    *older, newest = PROMISED["Django"]
    assert f"Django {', '.join(older)} and {newest}" in README
