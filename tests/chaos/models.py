"""A model of which tasks create rows through Django. The SQL in `witness.TABLES` creates its tables."""

from django.db import models


class Row(models.Model):
    """A row for each run of the task `write_row`, in the schema that the connection was set to."""

    objects: "models.Manager[Row]" = models.Manager()

    job_id = models.BigIntegerField()

    class Meta:
        db_table = "chaos_row"
        managed = False

    def __str__(self) -> str:
        return f"of job {self.job_id}"
