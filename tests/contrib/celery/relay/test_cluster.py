"""Three nodes of RabbitMQ form a cluster on one machine, and one of them dies."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_skipqueue.models import Job
from scripts.embedded_rabbitmq import RabbitMQ, program

from ....app.jobs import record
from ....app.models import Ledger
from ....app.waiting import DEADLINE, wait_until
from ....harness.processes import ManagePy, wait_for_statuses
from ..carried.celery_worker import APP, start_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

NODES = 3


@pytest.fixture
def cluster() -> Iterator[list[RabbitMQ]]:
    if program() is None:
        pytest.skip("RabbitMQ is not installed.")
    with ExitStack() as cleanups:
        nodes = []
        for _ in range(NODES):
            nodes.append(node := RabbitMQ.in_temporary_folder())
            cleanups.callback(node.remove)
            node.join(nodes[0]) if node is not nodes[0] else node.start()
        yield nodes


def leaders(node: RabbitMQ) -> dict[str, str]:
    """Return the node that leads each quorum queue, by the name of the queue."""
    lines = node.control("list_queues", "--no-table-headers", "name", "leader").splitlines()
    return {name: leader for name, leader in (line.split("\t") for line in lines) if leader}


def test_relays_and_celery_go_on_without_the_node_that_leads_their_queues(
    cluster: list[RabbitMQ], manage: Callable[..., ManagePy]
) -> None:
    url = ";".join(node.url() for node in cluster)
    settings: dict[str, Any] = {"CARRIERS": {"celery": {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}}}}
    for name in ("one", "two"):
        manage("runrelay", "--name", name, skipqueue=settings, environment={"TESTS_BROKER_URL": url})
    start_worker(manage, url, "--pool", "threads", "-c", "4")
    defer_records(50)
    wait_for_statuses(completed=50)
    # The node that leads most queues dies.
    [(most_common_leader, _)] = Counter(leaders(cluster[0]).values()).most_common(1)
    [dying_node] = [node for node in cluster if node.node == most_common_leader]
    [surviving_node, _] = [node for node in cluster if node is not dying_node]

    defer_records(100)
    wait_until(lambda: Job.objects.filter(status="completed").count() > 50, "some of the jobs have run")
    dying_node.kill()
    defer_records(100)
    wait_until(
        lambda: Job.objects.filter(status="completed").count() == 250, "all jobs have run", deadline=2 * DEADLINE
    )
    assert set(Ledger.objects.values_list("entry", flat=True)) == {str(number) for number in range(250)}
    wait_until(lambda: dying_node.node not in leaders(surviving_node).values(), "other nodes lead the queues")


def defer_records(count: int) -> None:
    first_number = Job.objects.count()
    for number in range(first_number, first_number + count):
        record.using(queue_name="carried").defer(str(number))
