"""The Kubernetes manifests of the pages about deployment are consistent, and their scaling query counts correctly."""

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
from .test_pages import PAGES, code_blocks

BLOCKS = [block for page in PAGES if page.stem in ("deploy", "scale", "celery-relay") for block in code_blocks(page)]


def manifests(kind: str) -> Iterator[dict[str, Any]]:
    """The manifests of a kind on all three pages."""
    for block in BLOCKS:
        if block.language == "yaml":
            for manifest in yaml.safe_load_all(block.code):
                if manifest.get("kind") == kind:
                    yield manifest


DEPLOYMENTS = {manifest["metadata"]["name"]: manifest["spec"] for manifest in manifests("Deployment")}


def container(spec: dict[str, Any]) -> dict[str, Any]:
    only_container: dict[str, Any]
    (only_container,) = spec["template"]["spec"]["containers"]
    return only_container


def test_the_manifests_deploy_worker_relay_and_celery() -> None:
    commands = {name: container(spec)["command"] for name, spec in DEPLOYMENTS.items()}
    assert {name: command[:3] for name, command in commands.items()} == {
        "shop-worker": ["python", "manage.py", "runworker"],
        "shop-relay": ["python", "manage.py", "runrelay"],
        "shop-celery": ["celery", "-A", "shop"],
    }


def test_pods_have_a_longer_grace_period_than_the_shutdown_timeout() -> None:
    for name in ("shop-worker", "shop-relay"):
        pod = DEPLOYMENTS[name]["template"]["spec"]
        environment = {variable["name"]: variable.get("value") for variable in container(DEPLOYMENTS[name])["env"]}
        assert pod["terminationGracePeriodSeconds"] == int(environment["SKIPQUEUE_SHUTDOWN_TIMEOUT"]) + 20


def test_the_environment_variables_of_pods_are_options_of_their_commands() -> None:
    for name in ("shop-worker", "shop-relay"):
        command = container(DEPLOYMENTS[name])["command"][2]
        parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
        options = {f"SKIPQUEUE_{action.dest.upper()}" for action in parser._actions}
        assert {variable["name"] for variable in container(DEPLOYMENTS[name])["env"]} <= options


def test_labels_and_names_of_the_manifests_match() -> None:
    for name, spec in DEPLOYMENTS.items():
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == {"app": name}
    budgets = {manifest["metadata"]["name"]: manifest["spec"] for manifest in manifests("PodDisruptionBudget")}
    assert {name: spec["selector"]["matchLabels"]["app"] for name, spec in budgets.items()} == {
        name: name for name in DEPLOYMENTS
    }
    (scaled_object,) = manifests("ScaledObject")
    assert scaled_object["spec"]["scaleTargetRef"]["name"] in DEPLOYMENTS


def run_scaling_query() -> int:
    """The result of the scaling query of the page."""
    (scaled_object,) = manifests("ScaledObject")
    (trigger,) = scaled_object["spec"]["triggers"]
    with connection.cursor() as cursor:
        cursor.execute(trigger["metadata"]["query"])
        ((count,),) = cursor.fetchall()
    assert isinstance(count, int)
    return count


@pytest.mark.django_db
def test_the_scaling_query_counts_queued_and_running_jobs_of_a_queue() -> None:
    assert run_scaling_query() == 0
    for status in STATUSES:
        make_job(status)
        make_job(status, queue_name="another")
    assert run_scaling_query() == 2, "the queued and the running job of the queue default"
    make_job("running", locked_by="carrier:celery")
    assert run_scaling_query() == 3, "jobs that are with a carrier count"


@pytest.mark.django_db
def test_the_scaling_query_leaves_out_jobs_of_a_paused_queue() -> None:
    make_job("queued")
    make_job("running")
    Queue.pause("another")
    assert run_scaling_query() == 2
    Queue.pause("default")
    assert run_scaling_query() == 1, "only the running job counts"
    Queue.resume("default")
    assert run_scaling_query() == 2
    Queue.objects.filter(name="default").update(paused_at=Now(), paused_until=Now() - timedelta(seconds=1))
    assert run_scaling_query() == 2, "the pause is over"


@pytest.mark.django_db
def test_the_scaling_query_counts_at_most_a_thousand_queued_jobs() -> None:
    multiply(make_job("queued"), 1_005)
    make_job("running")
    assert run_scaling_query() == 1_001, "a thousand queued jobs and the running one"
