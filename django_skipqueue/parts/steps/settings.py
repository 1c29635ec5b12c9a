"""The setting `MAX_ATTEMPTS_IN_ALL`. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...values.bounds import SMALLINT, whole

ATTEMPTS = whole(1, SMALLINT)


def problems(name: str, value: object) -> Iterator[str]:
    if not ATTEMPTS.allows(value):
        yield f"{name} must be {ATTEMPTS}, not {value!r}."


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    max_attempts_in_all: int = field(default=1_000, metadata={"problems": problems})
    """The number of attempts before a job with steps fails, however many steps it has recorded."""
