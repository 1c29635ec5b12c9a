"""A project's Celery app, to be carried by."""

from celery import Celery

app = Celery("tests", broker="amqp://guest:guest@127.0.0.1:1//", set_as_current=False)

not_an_app = object()
