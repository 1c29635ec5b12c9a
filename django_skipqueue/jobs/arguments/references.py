"""The codec of model instances: a reference is stored, and the row is fetched when the job runs.

Invariant: a task never gets an instance of another row, or of another database, than the caller passed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import Model

from ...exceptions import RowMissing
from .codec import OBJECT, Codec

KEYS = {"model", "pk", "database"}
"""The keys of a reference."""


class Reference(Codec):
    """Instances of some models, as `{"model": "shop.order", "pk": 42, "database": "default"}`."""

    kinds = frozenset((OBJECT,))
    fetches: ClassVar[bool] = True

    def __init__(self, models: tuple[type[Model], ...]) -> None:
        self._models = models

    def __str__(self) -> str:
        return " | ".join(model.__qualname__ for model in self._models)

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._models)

    def encode(self, name: str, value: Any) -> Any:
        """See `Codec`. An instance must be saved."""
        if isinstance(value, dict):
            if problem := self._problem(value):
                self.refuse(name, value, f"{problem[0].upper()}{problem[1:]}.")
            return value
        if not self.fits(value):
            self.refuse(name, value, f"Pass a saved {self}.")
        if value.pk is None or value._state.adding or value._state.db is None:
            self.refuse(name, value, "It is not saved: save it first, because the job fetches its row.")
        meta = value._meta
        if _is_composite(type(value)):
            self.refuse(name, value, "Its primary key has several columns: pass these.")
        pk = value.pk if isinstance(value.pk, int | str) else meta.pk.value_to_string(value)
        return {"model": meta.label_lower, "pk": pk, "database": value._state.db}

    def decode(self, name: str, value: Any) -> Any:
        """See `Codec`. Fetches the row; raises `RowMissing` if it is gone."""
        return self._fetched([(name, value)])[0]

    def decode_all(self, name: str, values: Sequence[Any]) -> list[Any]:
        """See `Codec`. Sends one query for each model and database."""
        return self._fetched([(f"{name}[{position}]", value) for position, value in enumerate(values)])

    def _fetched(self, references: Sequence[tuple[str, Any]]) -> list[Any]:
        wanted: dict[tuple[str, str], set[Any]] = {}
        keys = []
        for name, value in references:
            if problem := self._problem(value):
                self.fail(name, value, problem)
            place = value["model"], value["database"]
            pk = self._pk(name, value)
            wanted.setdefault(place, set()).add(pk)
            keys.append((place, pk))
        found = {
            (label, alias): apps.get_model(label)._base_manager.using(alias).in_bulk(pks)
            for (label, alias), pks in wanted.items()
        }
        for (name, value), (place, pk) in zip(references, keys, strict=True):
            if pk not in found[place]:
                label = apps.get_model(value["model"])._meta.label
                raise RowMissing(f"{name} is {label} {value['pk']!r}, which the database {place[1]!r} no longer has.")
        return [found[place][pk] for place, pk in keys]

    def _problem(self, value: Any) -> str:
        """Why this is no reference to one of the models; empty if it is."""
        if not isinstance(value, Mapping) or value.keys() != KEYS:
            return f"a reference to a row has the keys {', '.join(sorted(KEYS))}"
        label, alias = value["model"], value["database"]
        try:
            model = apps.get_model(label)
        except (LookupError, ValueError, AttributeError, TypeError):
            return f"there is no model {label!r}"
        if not issubclass(model, self._models):
            return f"{label} is another model"
        if not isinstance(alias, str) or alias not in connections:
            return f"there is no database {alias!r}"
        return "" if isinstance(value["pk"], int | str) else f"{value['pk']!r} is no primary key"

    def _pk(self, name: str, value: Mapping[str, Any]) -> Any:
        try:
            return apps.get_model(value["model"])._meta.pk.to_python(value["pk"])
        except ValidationError as error:
            self.fail(name, value, "; ".join(error.messages))


def _is_composite(model: type[Model]) -> bool:
    return len(getattr(model._meta, "pk_fields", ())) > 1
