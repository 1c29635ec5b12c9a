"""Helpers for the tests of a project: they run the jobs that a test deferred, and assert that jobs were deferred.

The jobs are real rows. The production code enqueues, claims and runs them, and writes their outcomes, on the test's
connection and in the test's transaction. The helpers only leave out processes, threads and waiting.
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
