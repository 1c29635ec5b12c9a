"""What operators can request of a worker in its list: the words of the question and of its answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from ...models import Worker


@dataclass(frozen=True)
class RequestButton:
    name: str
    """The value of `WorkerRequest.request`, and a part of the address."""
    label: Any
    question: Any
    """With the worker's name."""
    explanation: Any
    requested: Any
    """The state until it is done."""
    done: Any
    """The message to the operator, with the worker's name."""
    is_dangerous: bool
    request: Callable[[Worker], bool]


REQUESTS = (
    RequestButton(
        "restart",
        label=_("Restart"),
        question=_("Restart the worker %(worker)s?"),
        explanation=_(
            "It claims nothing more and finishes its jobs, however long they take. Then another process takes its "
            "place."
        ),
        requested=_("restart requested"),
        done=_("The worker %(worker)s restarts once its jobs have ended."),
        is_dangerous=False,
        request=Worker.restart,
    ),
    RequestButton(
        "stop",
        label=_("Stop"),
        question=_("Stop the runworker of %(worker)s?"),
        explanation=_(
            "The whole runworker stops as after SIGTERM, with all its workers. Jobs that still run at the end of the "
            "shutdown timeout are released. What has started it may start it again."
        ),
        requested=_("stop requested"),
        done=_("The runworker of %(worker)s stops."),
        is_dangerous=True,
        request=Worker.stop,
    ),
)

REQUESTED = {each.name: each.requested for each in REQUESTS}
"""The state of a worker by what is requested of it."""
