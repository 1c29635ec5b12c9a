"""The setting `ALERTS_WEBHOOK`. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

ADDRESS = re.compile(r"https?://[^\s/?#@]+(?=[/?#]|\Z)\S*")


def problems(name: str, value: object) -> Iterator[str]:
    """Yield a sentence if the value is not a URL. The sentence does not quote the value, which may contain a secret."""
    if value is not None and not (isinstance(value, str) and ADDRESS.fullmatch(value)):
        yield f"{name} must be None, or a URL that begins with http:// or https:// and a host."


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    alerts_webhook: str | None = field(default=None, metadata={"problems": problems})
    """The URL to which a supervisor posts alerts."""
