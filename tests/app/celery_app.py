"""The Celery app of a project whose jobs Celery runs."""

from celery import Celery

app = Celery("tests", broker="amqp://guest:guest@127.0.0.1:1//", set_as_current=False)

not_an_app = object()
