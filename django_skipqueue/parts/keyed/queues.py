"""The keys of whole queues."""

from django.apps import apps

from ...conf import settings
from ...exceptions import InvalidOption

PREFIX = "queue:"
"""The beginning of the keys of queues. The statements that admit know them by it; no other key begins so."""


def key_of(queue_name: str) -> str:
    return PREFIX + queue_name


def require_changed(name: str, option: str, column: str) -> None:
    """Raise `InvalidOption` unless the queue's row has a value: jobs without a key of their queue would ignore it."""
    queue = apps.get_model("django_skipqueue", "Queue")  # which has the callers among its bases
    if not queue._default_manager.using(settings.database).filter(name=name).exclude(**{column: None}).exists():
        raise InvalidOption(
            f"The queue {name!r} has no {option} in the settings, so that none would hold for its jobs. Add "
            f'{name!r}: {{"{option}": None}} to SKIPQUEUE["QUEUES"], and restart the workers and all that enqueue.'
        )
