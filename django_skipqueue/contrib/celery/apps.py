"""The Django app: adds the key `CARRIERS` to `SKIPQUEUE`, and installs its part and its system checks."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from ...conf import add_setting, settings
from ...values.exposition import Metric
from ...values.part import Part, install_parts
from .settings import CARRIERS_KEY, CARRIERS_SETTING, CarrierSettings, carriers, make_carrier

if TYPE_CHECKING:
    from ...console.parts import PartConsole
    from ...supervisor.state import WorkerProcessState


class SkipQueueCeleryConfig(AppConfig):
    """Configuration of `django_skipqueue.contrib.celery`."""

    name = "django_skipqueue.contrib.celery"
    label = "skipqueue_celery"
    verbose_name = _("Job queue: Celery")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, *args: Any) -> None:
        """Add the setting, since other apps may read the settings before this app is ready."""
        super().__init__(*args)
        add_setting(CARRIERS_KEY, CARRIERS_SETTING)

    def ready(self) -> None:
        """Install the part, and register the checks. In a process with Celery, register the task of carried jobs."""
        install_parts([PART])
        for check in (check_carriers, check_carried_tasks):
            register(check, "django_skipqueue")
        if "celery" in sys.modules and carriers():
            from . import task  # noqa: F401 (it registers itself; other processes do not import Celery)


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


def _of_relay(value: Callable[["WorkerProcessState"], float]) -> Callable[["WorkerProcessState"], float | None]:
    """Return the function for relays whose process runs. It returns `None` for other processes."""
    return lambda process: None if process.slots or not process.has_started else value(process)


GAUGES = (
    (
        Metric(
            "skipqueue_worker_jobs_carried",
            "gauge",
            "Jobs with the carrier or on their way there, by all of its relays.",
            ("worker",),
        ),
        _of_relay(lambda relay: relay.jobs_running),
    ),
    (
        Metric("skipqueue_worker_window_room", "gauge", "Jobs that the relay could hand over at once.", ("worker",)),
        _of_relay(lambda relay: relay.slots_free),
    ),
)

PART = Part(name="celery", gauges=GAUGES, console=console)


LONGEST_UNACKNOWLEDGED = 1_800.0
"""Seconds for which RabbitMQ by default waits for the acknowledgement of a message: its consumer_timeout."""


def _carriers() -> list[CarrierSettings]:
    """Return the carriers of the settings; none if the settings are not valid, which E001 reports."""
    try:
        return list(carriers().values())
    except ImproperlyConfigured:
        return []


def check_carriers(**_: Any) -> list[CheckMessage]:
    """E011: a carrier lacks Celery, or its app cannot be imported or is no Celery app."""
    from .carrier import CarrierMisconfigured

    problems: list[CheckMessage] = []
    for carrier in _carriers():
        try:
            make_carrier(carrier, settings.database)
        except CarrierMisconfigured as error:
            hint = "SKIPQUEUE['CARRIERS'] has the path of the project's Celery app, such as 'shop.celery.app'."
            problems.append(Error(str(error), hint=hint, id="skipqueue.E011"))
    return problems


def check_carried_tasks(**_: Any) -> list[CheckMessage]:
    """W005: attempts of a task may take longer than RabbitMQ waits for an acknowledgement."""
    from ...jobs.registry import registry

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
