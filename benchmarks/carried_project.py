"""The project of the row `carried`, and its Celery app: Celery carries the queue, behind the RabbitMQ of `BROKER`."""

import os

from celery import Celery

from .settings import *  # noqa: F403 (the same project)

BROKER = "BENCHMARKS_BROKER"
WINDOW = "BENCHMARKS_WINDOW"
"""Environment variables: the broker's URL, and how many jobs it holds at most."""

app = Celery("benchmarks", broker=os.environ.get(BROKER))

SKIPQUEUE = {
    "CARRIERS": {
        "celery": {
            "APP": "benchmarks.carried_project.app",
            "QUEUES": {"default": "carried"},
            "WINDOW": int(os.environ.get(WINDOW, "2000")),
        }
    }
}
