"""The setting `ALERTS_WEBHOOK`. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

ADDRESS = re.compile(r"https?://[^\s/?#@]+(?=[/?#]|\Z)\S*")


def problems(name: str, given: object) -> Iterator[str]:
    """Yield a sentence if this is no address. The sentence is without the address, which may have a secret in it."""
    if given is not None and not (isinstance(given, str) and ADDRESS.fullmatch(given)):
        yield f"{name} must be None, or an address that begins with http:// or https:// and a host."


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    alerts_webhook: str | None = field(default=None, metadata={"problems": problems})
    """The address to which a supervisor posts alerts."""
