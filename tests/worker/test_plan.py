"""`next_plan` decides when a worker settles and claims. Each case has the fields of a `Work`, and the plan for it."""

from typing import Any

import pytest

from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.claiming import Plan, Work, next_plan

NOW = 100.0


def settle_and_claim(claim_count: int, at: float = 0.0) -> Plan:
    return Plan(at, settles=True, claims=claim_count)


@pytest.mark.parametrize(
    ("work", "plan"),
    [
        # The time is 100.0, and there is nothing to do now.
        ({}, Plan(NEVER)),
        ({"room": 5}, Plan(NEVER)),
        ({"room": 5, "claim_at": 101.0}, Plan(101.0)),
        ({"claim_at": 99.0}, Plan(NEVER)),  # no free slot
        ({"outcomes_at": 103.0, "claim_at": 99.0}, Plan(103.0)),
        ({"outcomes_at": 103.0, "admission_at": 102.0, "claim_at": 101.0, "room": 5}, Plan(101.0)),
        ({"outcomes_at": 103.0, "admission_at": 102.0, "claim_at": 104.0, "room": 5}, Plan(102.0)),
        ({"outcomes_at": 101.0, "admission_at": 102.0, "claim_at": 104.0, "room": 5}, Plan(101.0)),
        # One reason is enough, and the exchange settles and claims whatever the reason is.
        ({"has_finished": True, "room": 5, "claim_at": 200.0}, settle_and_claim(5)),
        ({"has_finished": True}, settle_and_claim(0)),
        ({"outcomes_at": 0.0, "room": 5, "claim_at": 200.0}, settle_and_claim(5)),
        ({"outcomes_at": 100.0, "room": 5}, settle_and_claim(5, at=100.0)),
        ({"admission_at": 99.0, "room": 5, "claim_at": 200.0}, settle_and_claim(5, at=99.0)),
        ({"admission_at": 99.0}, settle_and_claim(0, at=99.0)),
        ({"claim_at": 99.0, "room": 5}, settle_and_claim(5, at=99.0)),
        ({"claim_at": 0.0, "room": 1, "outcomes_at": 200.0}, settle_and_claim(1)),
        # A result is applied first, unless attempts have finished: then it is applied while the database works.
        ({"has_result": True}, Plan(0.0, applies=True)),
        ({"has_result": True, "room": 5, "claim_at": 99.0}, Plan(0.0, applies=True)),
        ({"has_result": True, "outcomes_at": 0.0, "room": 5}, Plan(0.0, applies=True)),
        ({"has_result": True, "has_finished": True, "room": 5}, settle_and_claim(5)),
        # After a failure each half is sent alone.
        ({"has_finished": True, "room": 5, "alone": ["settle", "claim"]}, Plan(0.0, False, True, 5, True)),
        ({"has_finished": True, "room": 5, "alone": ["claim", "settle"]}, Plan(0.0, claims=5)),
        ({"has_finished": True, "room": 5, "alone": ["claim"]}, Plan(0.0, claims=5)),
        ({"has_finished": True, "room": 5, "alone": ["settle"]}, Plan(0.0, False, True, 5, True)),
        (
            {"has_finished": True, "alone": ["claim", "settle"]},
            Plan(0.0, False, True, 0, True),
        ),  # no free slot: no claim
        ({"alone": ["claim", "settle"], "claim_at": 101.0, "room": 5}, Plan(101.0)),
        # Nothing is sent, nor applied, before the connection may be opened again.
        ({"has_finished": True, "room": 5, "claim_at": 0.0, "open_at": 100.5}, Plan(100.5)),
        ({"has_result": True, "open_at": 100.5}, Plan(100.5)),
        ({"claim_at": 101.0, "room": 5, "open_at": 100.5}, Plan(101.0)),
        ({"has_finished": True, "room": 5, "open_at": 100.0}, settle_and_claim(5, at=100.0)),
    ],
    ids=str,
)
def test_the_next_plan_depends_on_the_work_of_the_loop(work: dict[str, Any], plan: Plan) -> None:
    assert next_plan(Work(**work), NOW) == plan


@pytest.mark.parametrize(
    ("plan", "sends"),
    [
        (Plan(200.0), False),
        (Plan(0.0, applies=True), False),
        (Plan(0.0, settles=True), True),
        (Plan(0.0, claims=1), True),
    ],
)
def test_a_plan_sends_an_exchange_only_if_it_settles_or_claims(plan: Plan, sends: bool) -> None:
    assert plan.sends is sends
