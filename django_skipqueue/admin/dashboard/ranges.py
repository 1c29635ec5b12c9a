"""The stretches of time that the dashboard can show."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext_lazy as _

from ...models.rollup import Span

HOUR = 3_600


@dataclass(frozen=True)
class Range:
    slug: str
    label: Any
    bucket: int
    """Seconds."""
    buckets: int
    mark_every: timedelta
    """The distance of the labels of the time axis."""
    span: Span
    """Of the roll-ups that the buckets are added up from."""
    bucket_label: Any
    """The length of a bucket, as text."""


RANGES = (
    Range("1h", _("1 hour"), 60, 60, timedelta(minutes=10), Span.MINUTE, _("1 min")),
    Range("6h", _("6 hours"), 5 * 60, 72, timedelta(hours=1), Span.MINUTE, _("5 min")),
    Range("24h", _("24 hours"), 15 * 60, 96, timedelta(hours=4), Span.MINUTE, _("15 min")),
    Range("7d", _("7 days"), 2 * HOUR, 84, timedelta(days=1), Span.HOUR, _("2 h")),
)


def range_of(slug: str | None) -> Range:
    """The range of this name; of any other, the first."""
    return next((each for each in RANGES if each.slug == slug), RANGES[0])
