"""`skipqueue index`: the indexes of `SEARCHABLE` are built and dropped one at a time, while jobs run."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from django_skipqueue.console.cli.indexes import DROP_INDEX, change_index
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.search_indexes import ExistingIndex, SearchIndex, existing

from ...app.rows import DEFAULT, make_job
from ...app.waiting import wait_until
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

ADD, ECHO = "tests.app.jobs.add", "tests.app.jobs.echo"
INDEX_ON_A, INDEX_ON_VALUE = SearchIndex(ADD, "a", 0), SearchIndex(ECHO, "value", 0)


@pytest.fixture(autouse=True)
def drop_search_indexes_after_the_test(transactional_db: None) -> Iterator[None]:
    yield
    for index in existing(DEFAULT):
        change_index(DEFAULT, DROP_INDEX, schema=index.schema, name=index.name)
    connection.close()  # so that later tests do not inherit the timeouts of this connection


@pytest.fixture(autouse=True)
def searchable_arguments(settings: Any) -> None:
    settings.SKIPQUEUE = {**getattr(settings, "SKIPQUEUE", {}), "SEARCHABLE": {ADD: ["a"], ECHO: ["value"]}}


def valid_indexes() -> set[str]:
    return {index.name for index in existing(DEFAULT) if index.is_valid}


def test_the_command_builds_missing_indexes() -> None:
    result = skipqueue("index")
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith(f"{INDEX_ON_A.name}: {ADD} (a), built in ")
    assert second.startswith(f"{INDEX_ON_VALUE.name}: {ECHO} (value), built in ")
    assert valid_indexes() == {INDEX_ON_A.name, INDEX_ON_VALUE.name}
    assert skipqueue("index").out.splitlines() == [
        f"{INDEX_ON_A.name}: {ADD} (a), exists",
        f"{INDEX_ON_VALUE.name}: {ECHO} (value), exists",
    ]


def test_the_command_drops_only_indexes_that_the_setting_no_longer_names(settings: Any) -> None:
    skipqueue("index")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'skipqueue_job'")
        ((indexes_before,),) = cursor.fetchall()
        settings.SKIPQUEUE = {**settings.SKIPQUEUE, "SEARCHABLE": {ADD: ["a"]}}
        assert f"{INDEX_ON_VALUE.name}: not listed in SEARCHABLE, dropped" in skipqueue("index").out.splitlines()
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'skipqueue_job'")
        assert cursor.fetchall() == [(indexes_before - 1,)]
    assert valid_indexes() == {INDEX_ON_A.name}
    del settings.SKIPQUEUE["SEARCHABLE"]
    settings.SKIPQUEUE = {**settings.SKIPQUEUE}
    skipqueue("index")
    assert existing(DEFAULT) == []


def test_a_dry_run_of_index_changes_no_index(settings: Any) -> None:
    skipqueue("index")
    settings.SKIPQUEUE = {**settings.SKIPQUEUE, "SEARCHABLE": {ADD: ["b"]}}
    result = skipqueue("index", "--dry-run")
    assert result.code == 0
    assert f"{INDEX_ON_A.name}: not listed in SEARCHABLE, would be dropped" in result.out
    assert f"{SearchIndex(ADD, 'b', 1).name}: {ADD} (b), would be built" in result.out
    assert valid_indexes() == {INDEX_ON_A.name, INDEX_ON_VALUE.name}


@pytest.fixture
def interrupt_index_build(connect: Any) -> Iterator[Callable[[], None]]:
    """Start a build of `INDEX_ON_A` that waits for an open transaction. Returns a function that interrupts it."""
    job = make_job(task=ADD, args=[1])
    session_with_open_transaction, builder = connect(autocommit=False), connect()
    session_with_open_transaction.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    with ThreadPoolExecutor() as pool:
        building = pool.submit(builder.execute, f"CREATE INDEX CONCURRENTLY {INDEX_ON_A.name} ON skipqueue_job (task)")
        wait_until(lambda: [index for index in existing(DEFAULT) if index.is_being_built], "the build has begun")

        def interrupt() -> None:
            builder.cancel_safe()
            assert isinstance(building.exception(), psycopg.errors.QueryCanceled)

        yield interrupt
        session_with_open_transaction.rollback()


def test_an_index_of_an_interrupted_build_is_dropped_and_built_again(
    interrupt_index_build: Callable[[], None], connect: Any
) -> None:
    interrupt_index_build()
    assert existing(DEFAULT) == [ExistingIndex("public", INDEX_ON_A.name, is_valid=False, is_being_built=False)]
    result = skipqueue("index", "--dry-run")
    assert f"{INDEX_ON_A.name}: left by an interrupted build, would be dropped" in result.out
    assert f"{INDEX_ON_A.name}: {ADD} (a), would be built" in result.out


def test_an_index_that_another_session_builds_is_not_changed(interrupt_index_build: Callable[[], None]) -> None:
    result = skipqueue("index", "--dry-run")
    assert f"{INDEX_ON_A.name}: another session is building it now" in result.out
    assert f"{ADD} (a)" not in result.out


def test_a_build_waits_no_longer_than_the_lock_timeout(connect: Any) -> None:
    job = make_job()
    session_with_open_transaction = connect(autocommit=False)
    session_with_open_transaction.execute("UPDATE skipqueue_job SET priority = 1 WHERE id = %s", [job.pk])
    result = skipqueue("index", "--lock-timeout", "0.2s")
    assert result.code == Exit.ERROR
    assert "Run the command again to continue." in result.err
    session_with_open_transaction.rollback()
    assert not valid_indexes()
    assert f"{INDEX_ON_A.name}: left by an interrupted build, dropped" in skipqueue("index").out
    assert valid_indexes() == {INDEX_ON_A.name, INDEX_ON_VALUE.name}


@pytest.mark.parametrize(
    ("searchable", "expected_error"),
    [
        ({"shop.nosuch": ["id"]}, "SKIPQUEUE['SEARCHABLE']['shop.nosuch']: no task is registered under this name."),
        ({ADD: ["aa"]}, f"SKIPQUEUE['SEARCHABLE']['{ADD}']: the task has no argument 'aa'."),
        ({ECHO: ["value"], ADD: ["x"]}, "the task has no argument 'x'."),
    ],
)
def test_an_argument_that_no_index_can_have_is_an_error(searchable: Any, expected_error: str, settings: Any) -> None:
    settings.SKIPQUEUE = {**settings.SKIPQUEUE, "SEARCHABLE": searchable}
    result = skipqueue("index")
    assert result.code == Exit.ERROR
    assert expected_error in result.err
    assert existing(DEFAULT) == []


def test_index_is_refused_within_a_transaction() -> None:
    with transaction.atomic():
        result = skipqueue("index", "--dry-run")
    assert result.code == Exit.ERROR
    assert "the caller has one open" in result.err


def test_the_names_of_a_task_and_its_argument_are_quoted_in_sql(settings: Any, connect: Any) -> None:
    index = SearchIndex("it's 100 % {odd}", "a", place=None)
    index.create(DEFAULT)
    job = make_job(task=index.task, kwargs={"a": "x'y"})
    assert index.find(DEFAULT, '"x\'y"', limit=2) == [job.pk]
    assert valid_indexes() == {index.name}


def test_an_argument_of_any_length_and_type_can_be_indexed() -> None:
    """An index entry has at most a third of a page, so a long value itself could not be an entry."""
    skipqueue("index")
    long_value = "".join(map(str, range(30_000)))
    job = make_job(task=ECHO, kwargs={"value": long_value})
    odd_arguments: tuple[Any, ...] = ([], {"a": 1}, "x", 5)
    for odd_argument in odd_arguments:
        make_job(task=ECHO, args=odd_argument, kwargs=odd_argument)
    assert INDEX_ON_VALUE.find(DEFAULT, json.dumps(long_value), limit=2) == [job.pk]
    create_plain_index = "CREATE INDEX skipqueue_search_plain ON skipqueue_job ((kwargs ->> 'value'))"
    with connection.cursor() as cursor, pytest.raises(OperationalError, match="index row"):
        cursor.execute(create_plain_index)
