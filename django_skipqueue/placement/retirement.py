"""What is left in a database that is to go."""

MOST_COUNTED = 10_000
"""Jobs of a status that are counted at most: the check has to be quick beside millions."""


def retirement(alias: str) -> tuple[str, str]:
    """A sentence about the unfinished jobs of a database in `RETIRING`, and one about what to do.

    Both are empty if its tables are missing: then there is nothing in it.
    """
    from django.db import DatabaseError  # models are imported here: checks are registered while apps are loading

    from ..models import Job

    jobs = Job.objects.using(alias)
    unfinished = (jobs.queued(), jobs.scheduled(), jobs.blocked(), jobs.running())  # each has an index
    try:
        left = sum(some.order_by()[:MOST_COUNTED].count() for some in unfinished)
    except DatabaseError:
        return "", ""
    if not left:
        return (
            f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and none of its jobs is unfinished.",
            "Take it out of SKIPQUEUE['RETIRING']. The history of its jobs is shown only as long as it is listed.",
        )
    number = f"{left:,}" if left < MOST_COUNTED else f"{MOST_COUNTED:,} or more"
    return (
        f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and has unfinished jobs: {number}.",
        "Leave it there until workers have run them. Discard those that fail again and again, or that are years ahead.",
    )
