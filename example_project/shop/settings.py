"""The shop's settings. Values that differ between machines come from the environment."""

from pathlib import Path

import django
import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env("SECRET_KEY", default="not-a-secret-in-an-example")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

DATABASES = {"default": env.db("DATABASE_URL", default="postgres:///shop")}

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
    "payments",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
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
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True

if django.VERSION >= (6, 0):  # where Django has tasks, they are jobs of the same queue
    TASKS = {"default": {"BACKEND": "django_skipqueue.backend.SkipQueueBackend", "QUEUES": []}}

# A second way to run: CARRIER=celery has Celery's workers send the e-mails. The jobs stay in PostgreSQL.
CARRIER = env("CARRIER", default="")
if CARRIER == "celery":
    SKIPQUEUE = {"CARRIERS": {"celery": {"APP": "shop.celery.app", "QUEUES": {"emails": "emails"}}}}
    CELERY_BROKER_URL = env("CELERY_BROKER_URL", default="amqp://guest:guest@localhost:5672//")
elif CARRIER:
    raise ImproperlyConfigured(f"CARRIER is {CARRIER!r}; it may be celery, or empty.")

# Mails become files in the mailbox. EMAIL_URL sends them out instead: smtp+tls://user:password@mail.example.com:587
EMAIL_BACKEND = env("EMAIL_BACKEND", default="payments.mailbox.MailboxBackend")
EMAIL_FILE_PATH = env("EMAIL_FILE_PATH", default=str(BASE_DIR / "mailbox"))
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = "Chinook Records <receipts@chinook.example>"
if env("EMAIL_URL", default=""):
    globals().update(env.email_url("EMAIL_URL"))
