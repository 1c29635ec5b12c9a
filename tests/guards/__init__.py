"""Guards of correctness: patches that each take one guard out of the package, with the tests that fail without it.

A guard is a lock, a bound or a check on which a promise of the queue rests. The file of a guard begins with a sentence
that says what the guard ensures, the promises that need it, and the tests that fail without it. The patch follows:

    Guard: an outcome is written only while its lease is valid
    Promise: 3 (a job has at most one live lease)
    Red: tests/queue/test_settle.py::TestFences::test_no_outcome_is_written_with_a_stale_lease

`make guards` takes each guard out of a copy of the tree, and checks that its tests fail. `make guards ARGS="settle
claim"` does this only for guards whose name contains one of these texts. `make test` only checks that each patch can be
applied. If a change of the package moves a guard, make its patch again: take the guard out by hand, and put the output
of `git diff -U2` into the file.
"""
