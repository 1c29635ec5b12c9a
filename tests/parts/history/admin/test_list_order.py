"""The page of a cause finds its jobs among many by their index."""

import pytest
from django.test import Client

from ....console.admin.jobs.test_list_order import CAUSE, _many_jobs, check_counts_of_a_cause
from ..failing import record_failures

__all__ = ["_many_jobs"]


@pytest.mark.usefixtures("_many_jobs")
def test_the_counts_on_the_page_of_a_cause_walk_its_index(operator: Client) -> None:
    record_failures(CAUSE)
    check_counts_of_a_cause(operator, "failures/cause/?")
