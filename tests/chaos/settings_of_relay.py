"""The settings of the project if Celery runs the jobs of all queues. CHAOS_BROKER is the URL of the broker."""

from .carried import CARRIER, CELERY_QUEUE, WINDOW
from .settings import *  # noqa: F403 (the same project)
from .settings import SKIPQUEUE as OF_WORKERS

SKIPQUEUE = {
    **OF_WORKERS,
    "CARRIERS": {
        CARRIER: {
            "APP": "tests.chaos.celery_app.app",
            "QUEUES": {"default": CELERY_QUEUE, "narrow": CELERY_QUEUE},
            "WINDOW": WINDOW,
            "WAIT": 60,
        }
    },
}

SILENCED_SYSTEM_CHECKS = ["skipqueue.W005"]  # W005 warns of tasks with long timeouts; here all tasks are short
