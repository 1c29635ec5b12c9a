"""The manifests of the pages about deploying fit together, and the query of its `ScaledObject` counts what it says."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.models import Queue

from ..app.rows import STATUSES, make_job, multiply
from .test_pages import PAGES, blocks

CODES = [block for page in PAGES if page.stem in ("deploy", "scale", "celery-relay") for block in blocks(page)]


def manifests(kind: str) -> Iterator[dict[str, Any]]:
    for block in CODES:
        if block.language == "yaml":
            for manifest in yaml.safe_load_all(block.code):
                if manifest.get("kind") == kind:
                    yield manifest


DEPLOYMENTS = {manifest["metadata"]["name"]: manifest["spec"] for manifest in manifests("Deployment")}


def container(spec: dict[str, Any]) -> dict[str, Any]:
    (only,) = spec["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_the_page_deploys_each_program() -> None:
    commands = {name: container(spec)["command"] for name, spec in DEPLOYMENTS.items()}
    assert {name: command[:3] for name, command in commands.items()} == {
        "shop-worker": ["python", "manage.py", "runworker"],
        "shop-relay": ["python", "manage.py", "runrelay"],
        "shop-celery": ["celery", "-A", "shop"],
    }


def test_pods_have_the_time_to_stop() -> None:
    for name in ("shop-worker", "shop-relay"):
        pod = DEPLOYMENTS[name]["template"]["spec"]
        given = {each["name"]: each.get("value") for each in container(DEPLOYMENTS[name])["env"]}
        assert pod["terminationGracePeriodSeconds"] == int(given["SKIPQUEUE_SHUTDOWN_TIMEOUT"]) + 20


def test_the_variables_are_those_of_the_commands() -> None:
    for name in ("shop-worker", "shop-relay"):
        command = container(DEPLOYMENTS[name])["command"][2]
        parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
        known = {f"SKIPQUEUE_{action.dest.upper()}" for action in parser._actions}
        assert {each["name"] for each in container(DEPLOYMENTS[name])["env"]} <= known


def test_labels_and_names_fit() -> None:
    for name, spec in DEPLOYMENTS.items():
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == {"app": name}
    budgets = {each["metadata"]["name"]: each["spec"] for each in manifests("PodDisruptionBudget")}
    assert {name: spec["selector"]["matchLabels"]["app"] for name, spec in budgets.items()} == {
        name: name for name in DEPLOYMENTS
    }
    (scaled,) = manifests("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in DEPLOYMENTS


def waiting_or_running() -> int:
    """What the query of the page finds."""
    (scaled,) = manifests("ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    with connection.cursor() as cursor:
        cursor.execute(trigger["metadata"]["query"])
        ((found,),) = cursor.fetchall()
    assert isinstance(found, int)
    return found


@pytest.mark.django_db
def test_the_query_counts_the_jobs_of_a_queue_that_wait_for_a_worker_or_run() -> None:
    assert waiting_or_running() == 0
    for status in STATUSES:
        make_job(status)
        make_job(status, queue_name="another")
    assert waiting_or_running() == 2
    make_job("running", locked_by="carrier:celery")
    assert waiting_or_running() == 3, "jobs that are with a carrier count"


@pytest.mark.django_db
def test_the_query_leaves_out_what_waits_in_a_paused_queue() -> None:
    make_job("queued")
    make_job("running")
    Queue.pause("another")
    assert waiting_or_running() == 2
    Queue.pause("default")
    assert waiting_or_running() == 1
    Queue.resume("default")
    assert waiting_or_running() == 2
    Queue.objects.filter(name="default").update(paused_at=Now(), paused_until=Now() - timedelta(seconds=1))
    assert waiting_or_running() == 2


@pytest.mark.django_db
def test_the_query_counts_no_more_than_a_thousand_that_wait() -> None:
    multiply(make_job("queued"), 1_005)
    make_job("running")
    assert waiting_or_running() == 1_001
