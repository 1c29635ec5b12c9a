"""The settings `DATABASES`, `RETIRING` and `PLACEMENT`: which databases hold queues, and which one gets a job.

Pure. For example: `{"DATABASES": ("default", "queue_1"), "PLACEMENT": "spread", "RETIRING": ("queue_0",)}`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...values.settings import OneDatabase

SPREAD, ROUTER = "spread", "router"
"""The placements that are not functions. `spread`: the job's key chooses the database, and jobs without a key go to
each database in turn. `router`: Django's database routers choose."""


def alias_problems(name: str, value: object) -> Iterator[str]:
    """Yield a sentence if the value is not a tuple of aliases. `name`: the setting's name in the sentence."""
    if not isinstance(value, list | tuple) or not all(isinstance(alias, str) and alias for alias in value):
        yield f"{name} must be a tuple of aliases of DATABASES, not {value!r}."
    elif len(set(value)) < len(value):
        yield f"{name} lists an alias twice: {value!r}."


def placement_problems(name: str, value: object) -> Iterator[str]:
    """Yield a sentence if the value is not a placement, a function or the path of a function."""
    is_path = isinstance(value, str) and all(part.isidentifier() for part in value.split(".")) and "." in value
    if not (value in (None, SPREAD, ROUTER) or callable(value) or is_path):
        yield f"{name} must be None, {SPREAD!r}, {ROUTER!r}, or a function or its path, not {value!r}."


def _aliases(given: Mapping[Any, Any], key: str) -> Iterator[str]:
    value = given.get(key)
    if isinstance(value, list | tuple):
        yield from (alias for alias in value if isinstance(alias, str))


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings(OneDatabase):
    databases: tuple[str, ...] = field(default=(), metadata={"problems": alias_problems})
    """The aliases of the databases that hold queues; if empty, only `database`."""

    placement: Any = field(default=None, metadata={"problems": placement_problems})
    """How to choose a job's database: `spread`, `router`, a function or its path; `None` for always `database`."""

    retiring: tuple[str, ...] = field(default=(), metadata={"problems": alias_problems})
    """The aliases of databases that get no new jobs, but whose jobs workers still run."""

    @property
    def queue_databases(self) -> tuple[str, ...]:
        return self.databases or (self.database,)

    @property
    def served_databases(self) -> tuple[str, ...]:
        return (*self.queue_databases, *self.retiring)

    @cached_property  # used by each `.defer()`
    def is_spread(self) -> bool:
        return bool(self.placement == SPREAD)

    def may_hold_jobs(self, alias: str) -> bool:
        return not self.databases or alias in self.served_databases

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        aliases = {key: tuple(given.get(key, ())) for key in ("databases", "retiring")}
        default = {"database": aliases["databases"][0]} if aliases["databases"] else {}
        return default | given | aliases

    @classmethod
    def problems_together(cls, given: Mapping[Any, Any]) -> Iterator[str]:
        databases, retiring = (tuple(_aliases(given, key)) for key in ("DATABASES", "RETIRING"))
        database = given.get("DATABASE")
        if databases and isinstance(database, str) and database not in databases:
            yield f"SKIPQUEUE['DATABASE'] is {database!r}, which SKIPQUEUE['DATABASES'] does not list."
        only_database = database if isinstance(database, str) else "default"
        for alias in retiring:
            if alias in (databases or (only_database,)):
                yield (
                    f"SKIPQUEUE['RETIRING'] lists {alias!r}, which still gets new jobs. Remove it from one of the "
                    "two settings."
                )
        if given.get("PLACEMENT") is not None and not databases:
            yield "SKIPQUEUE['PLACEMENT'] chooses among SKIPQUEUE['DATABASES'], but that setting is missing."
