"""Starts a real `celery worker`, and acts as its relay in the test's process."""

import json
import select
from collections.abc import Callable
from typing import Any

from celery import Celery

from django_skipqueue.contrib.celery.carrier import Taken
from django_skipqueue.contrib.celery.celery_carrier import CeleryCarrier
from django_skipqueue.contrib.celery.rabbitmq import LARGEST_MESSAGE
from django_skipqueue.contrib.celery.settings import CarrierSettings
from django_skipqueue.values.records import Attempt, ClaimedJob

from ....app.waiting import wait_until
from ....harness.processes import ManagePy
from ..relay.test_wire import JOB

APP = "tests.contrib.celery.carried.celery_app"
SKIPQUEUE: dict[str, Any] = {
    "CARRIERS": {"celery": {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}}},
    "CAPTURE_LOGS": "INFO",
}
READY_LINE = " ready."


def start_worker(
    manage: Callable[..., ManagePy],
    url: str,
    *arguments: str,
    more_jobs: str = "",
    skipqueue: dict[str, Any] = SKIPQUEUE,
    **celery: Any,
) -> ManagePy:
    """Start `celery -A … worker -Q pdf` with these settings of Celery, and wait until it consumes.

    more_jobs: source code to add to the module `extra.jobs`. skipqueue: the setting `SKIPQUEUE`.
    """
    process = manage(
        "-A",
        APP,
        "worker",
        *("-Q", "pdf", "--without-gossip", "--without-mingle", "--loglevel", "INFO"),
        *arguments,
        module="celery",
        skipqueue=skipqueue,
        jobs=SOURCE_OF_JOBS + more_jobs,
        environment={"TESTS_BROKER_URL": url, "TESTS_CELERY": json.dumps(celery), "C_FORCE_ROOT": "1"},
    )
    process.wait_for(READY_LINE)
    return process


class RelayDouble:
    """Publishes jobs to the broker and receives their outcomes, as a relay does."""

    def __init__(self, url: str) -> None:
        settings = CarrierSettings(name="celery", app="", queues={"carried": "pdf"}, max_message_size=LARGEST_MESSAGE)
        self.carrier = CeleryCarrier(settings, Celery(broker=url), home="default")
        self.carrier.connect()
        self._without_outcome = Taken()

    def publish(self, *jobs: ClaimedJob) -> None:
        self.carrier.publish(jobs)

    def outcomes(self, count: int) -> dict[int, Attempt]:
        """Acknowledge the next outcomes, and return their attempts by the id of the job."""
        attempts: dict[int, Attempt] = {}

        def take_outcomes() -> bool:
            select.select([self.carrier.fileno()], [], [], 0.2)
            taken = self.carrier.take()
            self._without_outcome.jobs += taken.jobs
            attempts.update({returned.attempt.job.id: returned.attempt for returned in taken.outcomes})
            self.carrier.acknowledge([returned.delivery for returned in taken.outcomes])
            return len(attempts) >= count

        wait_until(take_outcomes, f"{count} outcomes; there are {attempts}, and came back {self._without_outcome.jobs}")
        return attempts

    def next_returned(self) -> Any:
        """Return the next job that comes back without an outcome."""

        def take_jobs() -> Any:
            select.select([self.carrier.fileno()], [], [], 0.2)
            self._without_outcome.jobs += self.carrier.take().jobs
            return self._without_outcome.jobs

        return wait_until(take_jobs, "a job comes back").pop()


def make_claimed_job(job_id: int, task: str, *args: Any, **fields: Any) -> ClaimedJob:
    """Return a job that has no row, which is enough for a task that does not write its own outcome."""
    path = task if task.startswith("extra.") else f"tests.app.{task}"
    job = JOB._replace(id=job_id, lease=1, task=path, queue_name="carried", args=json.dumps(args))
    return job._replace(**fields)


SOURCE_OF_JOBS = """
import logging
import os
import signal
import threading
import time
from django_skipqueue import job

@job(takes_context=True)
def who(context):
    return [os.getpid(), threading.current_thread().name, context.worker]

@job
def die():
    os.write(2, b"dies here\\n")
    os.kill(os.getpid(), signal.SIGKILL)

@job(takes_context=True)
def note(context):
    context.progress(0.5, "half")
    logging.getLogger("shop").info("a line")

@job(redact=["token"])
def leak(token):
    raise ValueError(f"the token is {token}")

@job
def hang():
    "Ignore all interruptions."
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"""
