"""The settings of the test suite: Django's usual apps, the queue, and two databases on the server of DATABASE_URL."""

import os
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

env = environ.Env()

if not env("DATABASE_URL", default=""):
    raise ImproperlyConfigured(
        "The tests need a PostgreSQL: `make test` starts one; DATABASE_URL=postgres://user@host/name uses another."
    )


def database(suffix: str = "") -> dict[str, Any]:
    """The settings of a database on the server. Its test name has the process id, so that two runs do not share it."""
    settings: dict[str, Any] = env.db("DATABASE_URL")
    name = settings["NAME"] + suffix
    return {**settings, "NAME": name, "TEST": {"NAME": f"test_{name}_{os.getpid()}"}}


DATABASES = {"default": database(), "other": database("_other")}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_skipqueue",
    "django_skipqueue.contrib.celery",
    "tests.app",
    "payments",  # the app of the example project
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SECRET_KEY = "only-for-tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the fastest hasher
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
