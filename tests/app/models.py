from django.db import models


class Ledger(models.Model):
    """A row that a task writes, which shows that the task ran."""

    entry = models.TextField()
    job_id = models.BigIntegerField(null=True)
    attempt = models.IntegerField(null=True)
    worker = models.TextField(default="")
    written_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.entry
