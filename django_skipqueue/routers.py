"""`QueueRouter`, for `DATABASE_ROUTERS`, puts the queue into databases of its own.

Invariant: the tables of the queue are in the databases that hold queues, and in no other.
"""

from typing import Any

from .conf import own_apps, settings


class QueueRouter:
    """Sends the models of this package to the queue's database, and creates their tables in all databases with queues.

    Leaves the models of other apps to other routers.
    """

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Whether the tables of this app are created in this database; `None` for other apps."""
        return db in settings.served_databases if app_label in own_apps() else None

    def db_for_read(self, model: type[Any], **hints: Any) -> str | None:
        """The queue's database for models of this app; `None` for the models of other apps."""
        return self._database(model, hints)

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        """The queue's database; `None` for models of other apps, and for a job that the project's routers place."""
        return self._database(model, hints)

    def _database(self, model: type[Any], hints: dict[str, Any]) -> str | None:
        if model._meta.app_label not in own_apps() or "task" in hints:
            return None
        known = getattr(hints.get("instance"), "_state", None)
        alias: str = getattr(known, "db", None) or settings.database
        return alias
