"""Relays and Celery workers run as a broker user that may declare no queue and no exchange."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.embedded_rabbitmq import RabbitMQ

from ....app.jobs import add
from ....harness.processes import ManagePy, wait_for_statuses
from .celery_worker import APP, start_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CARRIER = {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}, "DECLARE": False}
SKIPQUEUE: dict[str, Any] = {"CARRIERS": {"celery": CARRIER}}


@pytest.fixture
def url(rabbitmq: RabbitMQ, broker_url: str) -> str:
    """Add a broker user without permissions, and return the broker's URL for that user."""
    rabbitmq.control("add_user", "least", "secret")
    return broker_url.replace("guest:guest", "least:secret")


def test_relays_and_celery_run_with_the_permissions_that_show_topology_prints(
    rabbitmq: RabbitMQ, url: str, manage: Callable[..., ManagePy], tmp_path: Path
) -> None:
    environment = {"TESTS_BROKER_URL": url}
    process = manage("runrelay", "--show-topology", skipqueue=SKIPQUEUE, environment=environment)
    assert process.wait() == 0, process.log
    definitions = tmp_path / "topology.json"
    definitions.write_text(process.log[process.log.index("{") :])
    assert json.loads(definitions.read_text())["permissions"][0]["configure"] == "^$"
    rabbitmq.control("import_definitions", str(definitions))

    manage("runrelay", skipqueue=SKIPQUEUE, environment=environment)
    worker = start_worker(
        manage,
        url,
        *("--pool", "prefork", "-c", "2"),
        skipqueue=SKIPQUEUE,
        worker_enable_remote_control=False,
    )
    for number in range(20):
        add.using(queue_name="carried").defer(number, number)
    wait_for_statuses(completed=20)
    refused = [line for line in worker.log.splitlines() if "ACCESS_REFUSED" in line]
    assert all("celery_delayed" in line for line in refused), "Celery works without these queues"
