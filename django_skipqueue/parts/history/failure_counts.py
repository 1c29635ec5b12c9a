"""The failed attempts of one task with one cause, within one minute. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...values.records import Cause
from .counts import SPANS, start_of


@dataclass(slots=True)
class Failures:
    """Times are seconds since the epoch."""

    number: int
    first_at: float
    last_at: float
    last_line: int | None
    last_job_id: int

    def add(self, other: "Failures") -> None:
        if other.last_at >= self.last_at:
            self.last_line, self.last_job_id = other.last_line, other.last_job_id
        self.number += other.number
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)


def rows(counted: Mapping[tuple[int, Cause], Failures]) -> Iterator[dict[str, Any]]:
    total: dict[tuple[int, Cause, int], Failures] = {}
    for (minute, cause), failures in counted.items():
        for span in SPANS:
            key = (span, cause, start_of(span, minute))
            if key in total:
                total[key].add(failures)
            else:
                total[key] = Failures(**_fields(failures))
    for (span, cause, starts_at), failures in total.items():
        yield {"span": span, **cause._asdict(), "starts_at": starts_at, **_fields(failures)}


def _fields(failures: Failures) -> dict[str, Any]:
    return {name: getattr(failures, name) for name in failures.__slots__}
