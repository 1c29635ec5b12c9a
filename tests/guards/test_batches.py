"""A batch runs its callbacks once."""

import pytest

from django_skipqueue import Batch
from django_skipqueue.parts.batches.finish import FinishResult, finish_batches
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ..parts.batches.jobs import callbacks_of
from ..parts.batches.test_batch import ALL_CALLBACKS, FINISH_CALLBACK, SUCCESS_CALLBACK

pytestmark = pytest.mark.django_db


def test_a_batch_whose_callbacks_have_run_calls_nothing_back_again() -> None:
    """The test runs the callbacks first: they are jobs of the batch, which is not finished again before they are."""
    with Batch(**ALL_CALLBACKS) as batch:
        pass
    run_jobs()
    finished_at_first = batch.row.finished_at
    assert finish_batches(Store("default"), [batch.id]) == FinishResult()
    assert (batch.row.finished_at, callbacks_of()) == (finished_at_first, [SUCCESS_CALLBACK, FINISH_CALLBACK])
