"""`check_database` raises an error whose message is one line, if workers cannot use a database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from django_skipqueue.exceptions import QueueUnavailable
from django_skipqueue.worker.preflight import check_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def change_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes the settings of the database `other`."""

    def change_settings(**settings: Any) -> None:
        connections["other"].close()
        for key, value in settings.items():
            monkeypatch.setitem(connections["other"].settings_dict, key, value)

    yield change_settings
    connections["other"].close()


def message_of_refusal(name: str) -> str:
    with pytest.raises(QueueUnavailable) as refusal:
        check_database(name)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_database_that_workers_can_use_passes() -> None:
    check_database("default")
    check_database("other")


def test_a_database_that_is_not_postgresql_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabaseWrapper, "vendor", "sqlite")
    monkeypatch.setattr(DatabaseWrapper, "display_name", "SQLite")
    assert "needs PostgreSQL, but the database 'other' is SQLite" in message_of_refusal("other")


def test_a_server_that_cannot_be_reached_is_named_with_its_reason(change_settings: Callable[..., None]) -> None:
    change_settings(HOST="/nonexistent", OPTIONS={})
    message = message_of_refusal("other")
    assert "'other' cannot be reached: " in message
    assert "/nonexistent" in message
    assert "No such file or directory. Is the server running" in message


def test_a_database_that_does_not_exist_is_named(change_settings: Callable[..., None]) -> None:
    change_settings(NAME="no_such_database")
    assert "does not exist" in message_of_refusal("other")


def test_a_server_that_is_too_old_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabaseWrapper, "pg_version", 140_015)
    assert "needs PostgreSQL 15 or newer" in (message := message_of_refusal("default"))
    assert "PostgreSQL 14" in message


def test_missing_migrations_are_named_with_the_command_that_applies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in (("default", "migrate django_skipqueue"), ("other", "django_skipqueue --database=other")):
        with connections[name].cursor() as cursor:
            cursor.execute(
                "UPDATE django_migrations SET name = 'hidden' WHERE app = 'django_skipqueue' AND name = '0001_initial'"
            )
        try:
            message = message_of_refusal(name)
        finally:
            with connections[name].cursor() as cursor:
                cursor.execute("UPDATE django_migrations SET name = '0001_initial' WHERE name = 'hidden'")
        assert "0001_initial" in message
        assert message.endswith(f"{command}") or command in message
