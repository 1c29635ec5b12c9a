"""`RateBucket`: the tokens of one key of a rate."""

from django.db import models


class RateBucket(models.Model):
    """The tokens of a key that are taken. A key without a row has all of them. `parts.rates.admit` explains it."""

    key = models.TextField(primary_key=True)
    full_at = models.DateTimeField()
    """When all tokens are there again."""
    due_at = models.DateTimeField(null=True)
    """When the next job may be admitted. `None`: none is known to wait."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_rate"
        default_permissions = ()
        indexes = (models.Index(fields=["due_at", "full_at"], name="skipqueue_rate_due"),)

    def __str__(self) -> str:
        return self.key
