"""The settings of the Django project in which some peers run.

Its apps and its backend for Django's task framework come from the head of the peer's module. If the best settings of a
peer are not options of its command, they are in the environment of its worker.
"""

import json
import os

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", *os.environ["BENCHMARKS_APPS"].split()]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only-for-benchmarks"
USE_TZ = True

SETTINGS = "BENCHMARKS_SKIPQUEUE"
"""Environment variable: the setting `SKIPQUEUE` of our queue, as JSON."""
SKIPQUEUE = json.loads(os.environ.get(SETTINGS, "{}"))

PROCRASTINATE_IMPORT_PATHS = ["benchmarks.peers.procrastinate"]
if os.environ["BENCHMARKS_BACKEND"]:
    TASKS = {
        "default": {
            "BACKEND": os.environ["BENCHMARKS_BACKEND"],
            "QUEUES": ["default"],
            "OPTIONS": json.loads(os.environ.get("BENCHMARKS_OPTIONS", "{}")),
        }
    }
