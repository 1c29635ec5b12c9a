"""The settings of the project that the scenarios test. DATABASE_URL names its database."""

import environ

from . import WORKER_TIMEOUT

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
DATABASES["default"].setdefault("OPTIONS", {})["connect_timeout"] = 5

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_skipqueue",
    "django_skipqueue.contrib.celery",
    "tests.chaos",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only-for-chaos"
USE_TZ = True

SKIPQUEUE = {
    "WORKER_TIMEOUT": WORKER_TIMEOUT,
    "HEARTBEAT_INTERVAL": WORKER_TIMEOUT / 4,
    "SHUTDOWN_TIMEOUT": 15,
    "POLL_INTERVAL": 0.5,
    "QUEUES": {"narrow": {"concurrency": 2}},
    "RETENTION": {"completed": None, "discarded": 2, "failed": None},
}
