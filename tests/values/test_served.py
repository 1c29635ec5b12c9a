"""`served`: which queues a worker serves."""

import pytest

from django_skipqueue.values.records import serves


@pytest.mark.parametrize(
    ("given", "queue_name", "expected"),
    [
        ((), "mail", True),
        (("mail",), "mail", True),
        (("mail",), "other", False),
        ((), "carried", False),
        (("mail",), "carried", False),
        (("mail", "carried"), "carried", True),
    ],
)
def test_a_worker_serves_what_it_was_given_or_all_but_what_is_carried(
    given: tuple[str, ...], queue_name: str, expected: bool
) -> None:
    assert serves(given, queue_name, external=("carried",)) is expected
