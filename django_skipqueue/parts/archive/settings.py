"""The setting `ARCHIVE`. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from ...values.settings import LONGEST_RETENTION, Retention, as_time, is_retention


def problems(name: str, value: object) -> Iterator[str]:
    if value is not False and not (is_retention(value) and value not in (0, timedelta(0))):
        yield (
            f"{name} must be a timedelta or seconds (above 0, at most "
            f"{LONGEST_RETENTION.total_seconds():,.0f}), None to keep archived jobs for ever, or False for no archive, "
            f"not {value!r}."
        )


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    archive: Retention | Literal[False] = field(default=False, metadata={"problems": problems})
    """How long the archive keeps pruned jobs: a timedelta or seconds, or `None` for ever. `False` means that there is
    no archive, and pruned jobs are deleted."""

    @property
    def has_archive(self) -> bool:
        """Whether pruned jobs move to the archive."""
        return self.archive is not False

    @property
    def archive_retention(self) -> timedelta | None:
        """How long the archive keeps jobs; `None` means for ever."""
        return as_time(self.archive)
