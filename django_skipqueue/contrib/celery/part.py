"""Queues whose jobs Celery's workers run, as the core sees them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...values.exposition import Metric
from ...values.part import Part

if TYPE_CHECKING:
    from ...console.parts import PartConsole
    from ...supervisor.state import WorkerState


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


def _of_relay(value: Callable[["WorkerState"], float]) -> Callable[["WorkerState"], float | None]:
    """The value for a relay whose process runs; `None` for all others."""
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
