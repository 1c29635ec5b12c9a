"""`WorkerRequest`: a request of an operator to a worker process.

Invariant: a request is no part of the row of its worker. A transaction that makes a request and stays open locks only
the request, which heartbeats read as it was committed.
"""

from django.db import models


class WorkerRequest(models.Model):
    """One request to one worker. The row is deleted once the worker has ended."""

    worker_id = models.TextField(primary_key=True)
    """The id of the worker. No foreign key: its check would lock the row of the worker."""
    request = models.TextField()
    """`restart` or `stop`."""

    class Meta:
        db_table = "skipqueue_worker_request"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.request} {self.worker_id}"
