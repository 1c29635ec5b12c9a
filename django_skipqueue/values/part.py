"""`Part`: a feature in a folder of its own, which plugs into the core. Pure.

Invariant: the core and the console name no part. They ask `installed_parts`, which the app fills when Django starts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a feature gives to the core. Each default is "nothing"."""

    name: str
    services: tuple[Callable[[Any], Any], ...] = ()
    """Services of a supervisor, each made with its `Store`."""
    before_prune: Callable[[Any], Any] | None = None
    """Called with the store once in a while, before jobs are pruned. After a `DatabaseError` it is called again."""
    before_drained: Callable[[Any], Any] | None = None
    """Called with the store before a drain ends. Returns a true value if it has done something that makes jobs."""
    measures: Mapping[str, Callable[[Any], float]] = field(default_factory=dict)
    """What a rule of the alerts is about, by the rule's name: the function measures it with a `Store`."""
    lines: Mapping[type, tuple[int, Callable[[Any], None]]] = field(default_factory=dict)
    """Log lines of its events, as `events.log_sink.LINES` has them."""
    signals: Mapping[type, tuple[Any, Callable[[Any], Any]]] = field(default_factory=dict)
    """Django signals of its events, as `events.signal_sink.SIGNALS` has them."""
    console: Callable[[], Any] | None = None
    """Imports and returns what the part gives to operators: a `PartConsole`. No worker calls it."""


lines_of_parts: dict[type, tuple[int, Callable[[Any], None]]] = {}
signals_of_parts: dict[type, tuple[Any, Callable[[Any], Any]]] = {}
_installed: dict[str, Part] = {}


def install_parts(parts: Iterable[Part]) -> None:
    """Have the core use these parts, in their order. A part that is installed again changes nothing."""
    for part in parts:
        _installed[part.name] = part
        lines_of_parts.update(part.lines)
        signals_of_parts.update(part.signals)


def installed_parts() -> tuple[Part, ...]:
    """The parts of this process."""
    return tuple(_installed.values())
