"""Making a carrier from its settings. The checks' tests have its errors."""

import sys

import kombu

from django_skipqueue.relay.making import make_carrier
from django_skipqueue.setting_forms.carriers import CarrierSettings


def test_a_carrier_is_made_in_a_process_that_has_imported_kombu() -> None:
    """As a process of Celery has: kombu replaces its module by one without a spec."""
    assert sys.modules["kombu"] is kombu
    settings = CarrierSettings(name="celery", app="tests.app.celery_app.app", queues={"pdf": "pdf"})
    assert make_carrier(settings, "default").name == "celery"
