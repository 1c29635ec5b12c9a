"""A fake worker of Celery: it takes messages, sends outcomes, and dies at the instant that a test chooses."""

import json
from collections.abc import Sequence
from typing import Any

import amqp

from django_skipqueue.contrib.celery import rabbitmq as topology
from django_skipqueue.contrib.celery import wire
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob

from ....app.waiting import wait_until


class FakeCeleryWorker:
    """A worker of Celery with its own connection. When `send` returns, the broker has confirmed the outcome."""

    def __init__(self, url: str) -> None:
        host, _, vhost = url.removeprefix("amqp://guest:guest@").partition("/")
        self.connection = amqp.Connection(host=host, virtual_host=vhost or "/", confirm_publish=True)
        self.connection.connect()
        self.channel = self.connection.channel()

    def get(self, queue: str = "pdf") -> Any:
        """Return the next message, once there is one."""
        return wait_until(lambda: self.channel.basic_get(queue), f"a message in {queue}")

    def send(
        self, attempt: Attempt, body: bytes | None = None, id: str | None = None, *, home: str = "default"
    ) -> None:
        """Send an outcome to this home."""
        outcome = wire.encode_outcome(attempt, home)
        id, body = outcome.id if id is None else id, outcome.body if body is None else body
        self.send_together([outcome._replace(id=id, body=body)], home=home)

    def send_together(self, outcomes: Sequence[wire.EncodedOutcome], *, home: str = "default") -> None:
        """Send these outcomes in one message."""
        body, id = wire.join_outcomes(outcomes), outcomes[0].id
        message = amqp.Message(body, correlation_id=id, content_type="application/json", delivery_mode=2)
        self.channel.basic_publish(message, "", topology.outcome_queue(home))

    def finish(self, message: Any, result: int, *, acknowledge: bool = True) -> None:
        """Send the outcome of a job that has returned this number."""
        job, home = _job_and_home(message)
        self.send(
            Attempt(job, Outcome("completed", result=str(result)), started=10.0, ended=10.25, worker="celery@here"),
            home=home,
        )
        if acknowledge:
            self.channel.basic_ack(message.delivery_tag)

    def count_messages(self, queue: str) -> int:
        """Count the messages in the queue that no consumer has."""
        return int(self.channel.queue_declare(queue, passive=True).message_count)

    def close(self) -> None:
        """Drop the connection, as a dead worker does: the broker delivers unacknowledged messages again."""
        self.connection.collect()


def read_job(message: Any) -> ClaimedJob:
    """Return the job of a message as Celery's task reads it."""
    job, _ = _job_and_home(message)
    return job


def _job_and_home(message: Any) -> tuple[ClaimedJob, str]:
    [payload], _kwargs, _embed = json.loads(message.body)  # the arguments of Celery's task, and two other fields
    return wire.job_from_wire(payload)
