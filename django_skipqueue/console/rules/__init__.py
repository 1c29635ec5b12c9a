"""The doctor examines the queue and its database, and says what to do about each finding.

Invariant: a check changes nothing, reads no more than the `LIMIT` of its statement, and cannot break another check.
"""
