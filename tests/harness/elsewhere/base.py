"""Where Django looks for the backend."""

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """Connects within a test as outside of one."""

    def ensure_connection(self) -> None:
        """As Django does it outside of a test."""
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
