"""The rules of the doctor and of the verdict. Each finds problems of the queue or its database, and says what to do.

A rule does not change the database, and reads no more rows than its statement's `LIMIT`. If a rule fails, the other
rules are still applied.
"""
