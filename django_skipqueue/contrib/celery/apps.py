"""The Django app: it adds the key `CARRIERS` to the setting `SKIPQUEUE`, and installs a part and system checks."""

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
        """Add the setting early, because other apps may read the settings before this app is ready."""
        super().__init__(*args)
        add_setting(CARRIERS_KEY, CARRIERS_SETTING)

    def ready(self) -> None:
        """Install the part, and register the checks. In a process with Celery, register the task of carried jobs."""
        install_parts([PART])
        for check in (check_carriers, check_carried_tasks):
            register(check, "django_skipqueue")
        if "celery" in sys.modules and carriers():
            from . import task  # noqa: F401 (the import registers the Celery task)


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


def _only_for_relays(value: Callable[["WorkerProcessState"], float]) -> Callable[["WorkerProcessState"], float | None]:
    """Wrap `value`, so that it returns `None` for every process that is not a running relay."""
    return lambda process: None if process.slots or not process.has_started else value(process)


GAUGES = (
    (
        Metric(
            "skipqueue_worker_jobs_carried",
            "gauge",
            "Jobs at the carrier or on their way there, from all of its relays.",
            ("worker",),
        ),
        _only_for_relays(lambda relay: relay.jobs_running),
    ),
    (
        Metric("skipqueue_worker_window_room", "gauge", "Jobs that the relay could hand over right now.", ("worker",)),
        _only_for_relays(lambda relay: relay.slots_free),
    ),
)

PART = Part(name="celery", gauges=GAUGES, console=console)


LONGEST_UNACKNOWLEDGED = 1_800.0
"""RabbitMQ by default waits this many seconds until a consumer acknowledges a message (its `consumer_timeout`)."""


def _carriers() -> list[CarrierSettings]:
    """Return the carriers in the settings; none if the settings are not valid, which E001 reports."""
    try:
        return list(carriers().values())
    except ImproperlyConfigured:
        return []


def check_carriers(**_: Any) -> list[CheckMessage]:
    """Report E011 if Celery is not installed, or if a carrier's app cannot be imported or is not a Celery app."""
    from .carrier import CarrierMisconfigured

    problems: list[CheckMessage] = []
    for carrier in _carriers():
        try:
            make_carrier(carrier, settings.database)
        except CarrierMisconfigured as error:
            hint = "SKIPQUEUE['CARRIERS'] needs the path of the project's Celery app, such as 'shop.celery.app'."
            problems.append(Error(str(error), hint=hint, id="skipqueue.E011"))
    return problems


def check_carried_tasks(**_: Any) -> list[CheckMessage]:
    """Report W005 if an attempt may take longer than RabbitMQ waits for the message's acknowledgement."""
    from ...jobs.registry import registry

    queue_names = {queue_name for carrier in _carriers() for queue_name in carrier.queues}
    minutes = f"{LONGEST_UNACKNOWLEDGED / 60:.0f} minutes"
    return [
        Warning(
            f"Celery runs the jobs of {task.name!r}, which have no timeout below {minutes}.",
            hint="RabbitMQ closes the connection of a consumer that has not acknowledged a message for this long. Then "
            "another consumer runs the job while the first still runs it. Add @job(timeout=…), or raise "
            "consumer_timeout in RabbitMQ and silence this check.",
            id="skipqueue.W005",
        )
        for task in registry
        if task.options.queue_name in queue_names and (task.timeout is None or task.timeout >= LONGEST_UNACKNOWLEDGED)
    ]
