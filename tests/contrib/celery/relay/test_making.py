"""A carrier is made from its settings. The tests of the system checks cover the errors."""

import sys

import kombu

from django_skipqueue.contrib.celery.settings import CarrierSettings, make_carrier

from .test_wire import JOB


def test_a_carrier_is_made_in_a_process_that_has_imported_kombu() -> None:
    """A Celery process has imported kombu, which replaces its own module by one without a `__spec__`."""
    assert sys.modules["kombu"] is kombu
    settings = CarrierSettings(name="celery", app="tests.app.celery_app.app", queues={"pdf": "pdf"})
    assert make_carrier(settings, "default").name == "celery"


def test_the_carrier_has_the_message_size_limit_of_its_setting() -> None:
    settings = CarrierSettings(
        name="celery", app="tests.app.celery_app.app", queues={"pdf": "pdf"}, max_message_size=70_000
    )
    job = JOB._replace(queue_name="pdf", args=f'"{"x" * 70_000}"')
    [too_large] = make_carrier(settings, "default").publish([job])
    assert (too_large.job, too_large.most) == (job, 70_000)
