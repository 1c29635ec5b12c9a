"""Times within JSON."""

from datetime import datetime

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware

from ..models.expressions import END_OF_TIME, FIRST_TIME


def moment_of(value: object) -> datetime | None:
    """The time that PostgreSQL wrote there; `None` for anything else, such as a time at the end of all times."""
    try:
        moment = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:  # well formed, but no such day
        return None
    return moment if moment and is_aware(moment) and FIRST_TIME <= moment < END_OF_TIME else None
