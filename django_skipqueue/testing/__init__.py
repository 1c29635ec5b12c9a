"""For the tests of projects that use the queue: run what was deferred, and assert that it was deferred.

Invariant: the jobs are real rows, which the production code enqueues, claims, executes and settles, on the connection
and in the transaction of the test. Only processes, threads and waiting are left out.
"""

from .assertions import aassert_deferred, aassert_not_deferred, assert_deferred, assert_not_deferred
from .capture import CapturedJobs, capture_deferred
from .crash import crash_after
from .inline import InlineJobs, run_inline
from .run import arun_jobs, run_jobs

__all__ = [
    "CapturedJobs",
    "InlineJobs",
    "aassert_deferred",
    "aassert_not_deferred",
    "arun_jobs",
    "assert_deferred",
    "assert_not_deferred",
    "capture_deferred",
    "crash_after",
    "run_inline",
    "run_jobs",
]
