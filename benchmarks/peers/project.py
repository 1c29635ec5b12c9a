"""The settings of the Django project in which some peers run; which apps it has comes from the peer's head."""

import os

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", *os.environ["BENCHMARKS_APPS"].split()]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only-for-benchmarks"
USE_TZ = True

PROCRASTINATE_IMPORT_PATHS = ["benchmarks.peers.procrastinate"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
