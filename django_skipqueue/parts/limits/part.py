"""The part `limits` for the core: concurrency limits, sequences and fair shares, with a system check of sequences."""

from datetime import timedelta
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured

from ... import conf
from ...jobs.registry import registry
from ...values.part import Part, console_of
from .admit import LimitGate
from .exchange import LimitsInExchange
from .options import TaskLimit
from .queues import of_queue
from .services import block_surplus_service, pass_permits_on

SHORTEST_HALT = timedelta(days=1)
"""Failed jobs must be kept for at least this time, so that operators can look at a halted sequence."""


def check_halting(**_: Any) -> list[CheckMessage]:
    """W003: failed jobs are deleted so soon that a halted sequence goes on before an operator has looked at it."""
    try:
        retention = conf.load().retention_of("failed")
    except ImproperlyConfigured:
        return []  # E001 reports the reason
    if retention is None or retention >= SHORTEST_HALT:
        return []
    return [
        Warning(
            f"The sequences of {task.name!r} halt at a failed job, and go on after {retention}, when it is deleted.",
            hint="Keep failed jobs for as long as your operators need: SKIPQUEUE['RETENTION']['failed']. If the "
            "sequence need not wait for an operator, use sequence=by(…, on_failure='continue').",
            id="skipqueue.W003",
        )
        for task in registry
        if (limit := task.options.of_part(TaskLimit)) and limit.sequence and limit.sequence.on_failure == "halt"
    ]


PART = Part(
    name="limits",
    depends=("keyed",),
    gate=LimitGate(),
    of_queue=of_queue,
    in_exchange=LimitsInExchange,
    services=(block_surplus_service, pass_permits_on),
    checks=(check_halting,),
    console=console_of(__package__),
)
