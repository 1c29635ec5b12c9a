"""System checks about the setting `CARRIERS`."""

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured

from ...conf import settings
from ...jobs.registry import registry
from .carrier import CarrierMisconfigured
from .conf import carriers
from .making import make_carrier
from .settings import CarrierSettings

LONGEST_UNACKNOWLEDGED = 1_800.0
"""Seconds for which RabbitMQ waits for the acknowledgement of a message, unless its consumer_timeout is changed."""


def register_all() -> None:
    """Register every check. Called when the app is ready."""
    for check in (check_carriers, check_carried_tasks):
        register(check, "django_skipqueue")


def check_carriers(**_: Any) -> list[CheckMessage]:
    """E011: a carrier without Celery, or with an app that cannot be imported, or that is none of Celery's."""
    problems: list[CheckMessage] = []
    for carrier in _carriers():
        try:
            make_carrier(carrier, settings.database)
        except CarrierMisconfigured as error:
            hint = "SKIPQUEUE['CARRIERS'] has the path of the project's Celery app, such as 'shop.celery.app'."
            problems.append(Error(str(error), hint=hint, id="skipqueue.E011"))
    return problems


def check_carried_tasks(**_: Any) -> list[CheckMessage]:
    """W005: a task whose attempts may take longer than RabbitMQ waits for an acknowledgement."""
    queue_names = {queue_name for carrier in _carriers() for queue_name in carrier.queues}
    minutes = f"{LONGEST_UNACKNOWLEDGED / 60:.0f} minutes"
    return [
        Warning(
            f"The jobs of {task.name!r} are carried, and have no timeout below {minutes}.",
            hint="RabbitMQ closes the connection of a consumer that has not acknowledged a message for so long. Then "
            "another one runs the job while the first still does. Say @job(timeout=…); or raise consumer_timeout in "
            "RabbitMQ, and silence this check.",
            id="skipqueue.W005",
        )
        for task in registry
        if task.options.queue_name in queue_names and (task.timeout is None or task.timeout >= LONGEST_UNACKNOWLEDGED)
    ]


def _carriers() -> list[CarrierSettings]:
    """The carriers of the settings; none if those are not valid, which E001 reports."""
    try:
        return list(carriers().values())
    except ImproperlyConfigured:
        return []
