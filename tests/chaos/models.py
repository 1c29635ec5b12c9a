"""The model of rows that tasks write through Django. `witness.TABLES` makes the tables."""

from django.db import models


class Row(models.Model):
    """One run of `write_row`, in the schema that its connection was set to."""

    objects: "models.Manager[Row]" = models.Manager()

    job_id = models.BigIntegerField()

    class Meta:
        db_table = "chaos_row"
        managed = False

    def __str__(self) -> str:
        return f"of job {self.job_id}"
