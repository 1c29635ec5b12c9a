"""A blocked job that has its permit of a limit, and waits for its rate, counts as a holder of the permit."""

from typing import Any

import pytest

from django_skipqueue.parts.limits.admit import admit_keys
from django_skipqueue.queue.store import Store

from ..app.rows import make_job, state

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_that_waits_for_its_rate_holds_its_permit() -> None:
    limit_columns: dict[str, Any] = {"limit_key": "k", "limit_kind": "concurrency", "capacity": 1}
    make_job("blocked", **limit_columns, gate="rate", rate_key="r", rate_interval=60.0, rate_burst=1)
    waiting_job = make_job("blocked", **limit_columns)
    assert admit_keys(Store("default"), ["k"]).counts == {}
    assert state(waiting_job)["status"] == "blocked"
