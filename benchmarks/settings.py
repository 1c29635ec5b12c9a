"""The settings of a minimal project with a queue, in the database of DATABASE_URL."""

import environ

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_skipqueue",
    "django_skipqueue.contrib.celery",
    "benchmarks",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only-for-benchmarks"
USE_TZ = True
