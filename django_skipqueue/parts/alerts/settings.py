"""The setting `ALERTS_WEBHOOK`. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

ADDRESS = re.compile(r"https?://[^\s/?#@]+(?=[/?#]|\Z)\S*")


def problems(name: str, given: object) -> Iterator[str]:
    """Yield a sentence if this is not a URL. The sentence does not quote the URL, which may contain a secret."""
    if given is not None and not (isinstance(given, str) and ADDRESS.fullmatch(given)):
        yield f"{name} must be None, or a URL that begins with http:// or https:// and a host."


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    alerts_webhook: str | None = field(default=None, metadata={"problems": problems})
    """The URL to which a supervisor posts alerts."""
