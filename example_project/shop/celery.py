"""The shop's Celery app. Only `CARRIER=celery` needs it: then Celery's workers send the e-mails."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
