"""The module in which Django looks for the class of the backend."""

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """Connects during a test without Django's check that the test has declared the database."""

    def ensure_connection(self) -> None:
        """Connect, as Django does outside of tests."""
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
