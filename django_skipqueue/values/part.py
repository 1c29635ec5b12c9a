"""`Part`: a feature in a folder of its own, which plugs into the core. Pure.

Invariant: the core and the console name no part. They ask `installed_parts`, which the app fills when Django starts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a feature gives to the core. Each default is "nothing"."""

    name: str
    services: tuple[Callable[[Any], Any], ...] = ()
    """Services of a supervisor, each made with its `Store`."""
    console: Callable[[], Any] | None = None
    """Imports and returns what the part gives to operators: a `PartConsole`. No worker calls it."""


_installed: dict[str, Part] = {}


def install_parts(parts: Iterable[Part]) -> None:
    """Have the core use these parts, in their order. A part that is installed again changes nothing."""
    _installed.update({part.name: part for part in parts})


def installed_parts() -> tuple[Part, ...]:
    """The parts of this process."""
    return tuple(_installed.values())
