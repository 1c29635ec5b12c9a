# /// script
# dependencies = ["celery==5.*", "psutil", "django==5.2.*", "psycopg[binary]==3.*"]
# [tool.peer]
# programs = ["rabbitmq-server"]
# apps = ["django_skipqueue", "benchmarks.peers"]
# ///
"""Our queue with Celery as its carrier: one relay passes the jobs to RabbitMQ, and Celery's workers run the jobs.

Celery and RabbitMQ have the same settings as for the peer `celery_rabbitmq`.
"""

import json
import os
import sys

from . import project, rabbitmq, skipqueue
from .skipqueue import enqueue, enqueue_many, unfinished

__all__ = ["HISTORY", "TITLE", "enqueue", "enqueue_many", "prepare", "unfinished", "worker"]

TITLE = "django_skipqueue, carried by RabbitMQ and Celery"
HISTORY = "row"

QUEUE = "carried"
SETTINGS = {"CARRIERS": {"celery": {"APP": "benchmarks.peers.rabbitmq.app", "QUEUES": {"default": QUEUE}}}}


def prepare() -> None:
    rabbitmq.start()
    os.environ[project.SETTINGS] = json.dumps(SETTINGS)
    skipqueue.prepare()


def worker(*, best: bool) -> list[str]:
    celery = rabbitmq.worker_command("benchmarks.peers.rabbitmq", "--queues", QUEUE, best=best)
    return [sys.executable, "-m", "benchmarks.peers.beside_relay", *celery]
