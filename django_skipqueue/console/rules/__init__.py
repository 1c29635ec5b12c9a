"""The rules of the doctor and of the verdict: each finds problems of the queue or its database, and says what to do.

Invariant: a rule changes nothing, reads no more rows than the `LIMIT` of its statement, and cannot break another rule.
"""
