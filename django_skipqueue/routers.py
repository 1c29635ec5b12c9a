"""`QueueRouter`, a database router for Django's setting `DATABASE_ROUTERS`: it puts the queue into its own databases.

The tables of the queue are created in the databases that hold queues, and in no other database.
"""

from typing import Any

from .conf import own_apps, settings


class QueueRouter:
    """Sends the models of this package to the queue's database, and creates their tables in all databases with queues.

    Leaves the models of other apps to other routers.
    """

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Whether `migrate` creates the tables of this app in this database. Returns `None` for other apps."""
        return db in settings.served_databases if app_label in own_apps() else None

    def db_for_read(self, model: type[Any], **hints: Any) -> str | None:
        """The queue's database for models of this app; `None` for the models of other apps."""
        return self._database(model, hints)

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        """The queue's database. `None` for models of other apps, and for jobs that the project's routers place."""
        return self._database(model, hints)

    def _database(self, model: type[Any], hints: dict[str, Any]) -> str | None:
        if model._meta.app_label not in own_apps() or "task" in hints:
            return None
        instance_state = getattr(hints.get("instance"), "_state", None)
        alias: str = getattr(instance_state, "db", None) or settings.database
        return alias
