"""A database in `RETIRING`: what is left in it, and when it can be taken out."""

MOST_COUNTED = 10_000
"""Jobs of a status that are counted at most: the check has to be quick beside millions."""


def retirement(alias: str) -> tuple[str, str]:
    """A sentence about the unfinished jobs of a database in `RETIRING`, and one about what to do.

    Both are empty if its tables are missing: then there is nothing in it.
    """
    from django.db import DatabaseError  # what needs models is imported late: checks are registered before they are

    try:
        left = unfinished(alias)
    except DatabaseError:
        return "", ""
    if not left:
        return (
            f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and none of its jobs is unfinished.",
            "Take it out of SKIPQUEUE['RETIRING']. The history of its jobs is shown only as long as it is listed.",
        )
    return (
        f"The database {alias!r} is in SKIPQUEUE['RETIRING'], and has unfinished jobs: {in_figures(left)}.",
        "Leave it there until workers have run them. Discard those that fail again and again, or that are years ahead.",
    )


def unfinished(alias: str) -> int:
    """The number of jobs of this database that are to be run still. Raises `DatabaseError`."""
    from ...models import Job  # see above

    jobs = Job.objects.using(alias)
    each_has_an_index = (jobs.queued(), jobs.scheduled(), jobs.blocked(), jobs.running())
    return sum(some.order_by()[:MOST_COUNTED].count() for some in each_has_an_index)


def in_figures(left: int) -> str:
    """The number as text: above a limit it was not counted."""
    return f"{left:,}" if left < MOST_COUNTED else f"{MOST_COUNTED:,}+"
