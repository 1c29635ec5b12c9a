"""`serves`: whether a worker serves a queue. Queues served by Celery ("carried") must be given to it by name."""

import pytest

from django_skipqueue.values.records import serves


@pytest.mark.parametrize(
    ("queues_of_worker", "queue_name", "is_served"),
    [
        ((), "mail", True),
        (("mail",), "mail", True),
        (("mail",), "other", False),
        ((), "carried", False),
        (("mail",), "carried", False),
        (("mail", "carried"), "carried", True),
    ],
)
def test_a_worker_serves_its_given_queues_or_all_queues_that_are_not_external(
    queues_of_worker: tuple[str, ...], queue_name: str, is_served: bool
) -> None:
    assert serves(queues_of_worker, queue_name, external=("carried",)) is is_served
