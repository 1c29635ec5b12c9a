"""What a batch calls back once it is over."""

import pytest

from django_skipqueue import Batch
from django_skipqueue.parts.batches.finish import FinishResult, finish_batches
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ..batches.jobs import callbacks_of
from ..batches.test_batch import ALL_CALLBACKS, FINISH_CALLBACK, SUCCESS_CALLBACK

pytestmark = pytest.mark.django_db


def test_a_batch_whose_callbacks_have_run_calls_nothing_back_again() -> None:
    """Until they have run, they are unfinished jobs of the batch, for which it would wait."""
    with Batch(**ALL_CALLBACKS) as batch:
        pass
    run_jobs()
    before = batch.row.finished_at
    assert finish_batches(Store("default"), [batch.id]) == FinishResult()
    assert (batch.row.finished_at, callbacks_of()) == (before, [SUCCESS_CALLBACK, FINISH_CALLBACK])
