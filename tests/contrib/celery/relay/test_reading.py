"""How a relay reads the messages of jobs that the broker returns without an outcome."""

import json

import pytest

from django_skipqueue.contrib.celery import wire

from .test_wire import JOB


def reason_of_return(headers: object) -> str:
    body = json.dumps([[wire.job_to_wire(JOB, "default")], {}, {}]).encode()
    returned = wire.returned_job(1, body, wire.message_id("default", JOB.ref), headers)
    assert (returned.ref, returned.job, returned.problem) == (JOB.ref, JOB, "")
    return returned.reason


@pytest.mark.parametrize("reason", ["expired", "delivery_limit", "maxlen"])
def test_the_broker_says_why_a_job_comes_back(reason: str) -> None:
    assert reason_of_return({"x-death": [{"reason": reason}, {"reason": "rejected"}]}) == reason


@pytest.mark.parametrize("deaths", [None, "expired", [], {}, 4, ["expired"], [{}], [{"reason": ["expired"]}]])
def test_an_unknown_reason_of_a_return_counts_as_a_rejection(deaths: object) -> None:
    assert reason_of_return({"x-death": deaths}) == "rejected"
    assert reason_of_return(deaths) == "rejected"


def test_a_job_that_cannot_be_read_has_the_lease_in_the_id_of_its_message() -> None:
    returned = wire.returned_job(1, b"?", "skipqueue-default-8-2", {"x-death": [{"reason": "expired"}]})
    assert (returned.ref, returned.reason, returned.job) == ((8, 2), "expired", None)
    assert returned.problem.startswith("skipqueue-default-8-2: The message is not JSON")
