"""Starts a real `celery worker`, and plays the relay in the process of the test."""

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

APP = "tests.contrib.celery.carried.celery_app"
SKIPQUEUE: dict[str, Any] = {
    "CARRIERS": {"celery": {"APP": f"{APP}.app", "QUEUES": {"carried": "pdf"}}},
    "CAPTURE_LOGS": "INFO",
}
READY = " ready."


def start_worker(
    manage: Callable[..., ManagePy],
    url: str,
    *arguments: str,
    more_jobs: str = "",
    skipqueue: dict[str, Any] = SKIPQUEUE,
    **celery: Any,
) -> ManagePy:
    """Start `celery -A … worker -Q pdf` with these settings of Celery, and wait until it consumes.

    more_jobs: more source for the module `extra.jobs`. skipqueue: the setting of that name.
    """
    process = manage(
        "-A",
        APP,
        "worker",
        *("-Q", "pdf", "--without-gossip", "--without-mingle", "--loglevel", "INFO"),
        *arguments,
        module="celery",
        skipqueue=skipqueue,
        jobs=JOBS + more_jobs,
        environment={"TESTS_BROKER_URL": url, "TESTS_CELERY": json.dumps(celery), "C_FORCE_ROOT": "1"},
    )
    process.wait_for(READY)
    return process


class RelayDouble:
    """Publishes jobs to the broker and receives their outcomes, as a relay does."""

    def __init__(self, url: str) -> None:
        settings = CarrierSettings(name="celery", app="", queues={"carried": "pdf"}, max_message_size=LARGEST_MESSAGE)
        self.carrier = CeleryCarrier(settings, Celery(broker=url), home="default")
        self.carrier.connect()
        self._left = Taken()

    def publish(self, *jobs: ClaimedJob) -> None:
        self.carrier.publish(jobs)

    def outcomes(self, count: int) -> dict[int, Attempt]:
        """Acknowledge the next outcomes, and return them by job."""
        found: dict[int, Attempt] = {}

        def take() -> bool:
            select.select([self.carrier.fileno()], [], [], 0.2)
            taken = self.carrier.take()
            self._left.jobs += taken.jobs
            found.update({each.attempt.job.id: each.attempt for each in taken.outcomes})
            self.carrier.acknowledge([each.delivery for each in taken.outcomes])
            return len(found) >= count

        wait_until(take, f"{count} outcomes; there are {found}, and came back {self._left.jobs}")
        return found

    def next_returned(self) -> Any:
        """Return the next job that comes back without an outcome."""

        def take() -> Any:
            select.select([self.carrier.fileno()], [], [], 0.2)
            self._left.jobs += self.carrier.take().jobs
            return self._left.jobs

        return wait_until(take, "a job comes back").pop()


def make_claimed_job(number: int, task: str, *args: Any, **fields: Any) -> ClaimedJob:
    """A job without a row: enough for a task that does not write its outcome itself."""
    path = task if task.startswith("extra.") else f"tests.app.{task}"
    made = ClaimedJob(number, 1, path, "carried", json.dumps(args), "{}", 1, 3, 0, 1.0, 2.0, "{}")
    return made._replace(**fields)


JOBS = """
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
