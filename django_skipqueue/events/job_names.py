"""Names a job in a text: by its id, or by its handle if several databases hold queues."""

from ..conf import settings
from ..values.records import handle_of


def job_name(alias: str, job_id: int) -> str:
    """`42`, or `queue_1:42` where an id alone names no job. `alias`: the database with the job."""
    return handle_of(alias, job_id) if settings.serves_several else str(job_id)
