"""The form of a statement for what comes from the broker of a carrier."""

# A carrier holds what its relays have handed over. A relay holds what it has claimed, and an outcome may be quicker
# than the hand-over. The subquery runs only if a row does not name the carrier; the table has a row for each worker.
_OF_CARRIER = (
    "(job.locked_by = %(carrier_id)s OR job.locked_by IN "
    "(SELECT relay.id FROM skipqueue_worker AS relay WHERE relay.relay_of = %(carrier)s))"
)


def of_carrier(statement: str) -> str:
    """The statement, which writes only jobs that the carrier or one of its relays holds. Called once, at import.

    Who can write to the broker can name any job with any lease: both are small numbers.
    """
    head, returning, rest = statement.rpartition("\nRETURNING ")
    return f"{head}\n    AND {_OF_CARRIER}{returning}{rest}"
