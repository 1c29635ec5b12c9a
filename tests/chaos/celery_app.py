"""The Celery app that carries the jobs of the scenario `relay`. Its worker connects to the broker through a proxy."""

import os

from celery import Celery

from .carried import CELERY_QUEUE

app = Celery("chaos", broker=os.environ["CHAOS_BROKER"])
app.conf.update(
    task_default_queue=CELERY_QUEUE,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_heartbeat=4,
    worker_prefetch_multiplier=4,
)
