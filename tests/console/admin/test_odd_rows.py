"""Rows with odd values, which another program may write: every page shows them, or PostgreSQL refuses them."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import IntegrityError, connection
from django.test import Client

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.values.codec import UNREADABLE

from ...app.rows import make_job
from ...worker.attempts.test_unreadable import DIGITS, LEVELS
from ..cli.running import skipqueue
from .conftest import LIST, page

pytestmark = pytest.mark.django_db(transaction=True)

DEEP_LIST = "[" * LEVELS + "]" * LEVELS
DEEP_OBJECT = f'{{"a": {DEEP_LIST}}}'
LONG_NUMBER = f'{{"a": {DIGITS}}}'
NOT_A_LIST = ("null", "5", '"a"', '{"password": "hunter22hunter22"}', f"[{DIGITS}]", DEEP_LIST)
NOT_AN_OBJECT = ("null", "5", '"a"', "[1]", LONG_NUMBER, DEEP_OBJECT)
LISTS_WITH_ODD_ENTRIES = ("[5]", "[null]", "[[]]", "[{}]", f"[{DIGITS}]", DEEP_LIST, f"[{LONG_NUMBER}]")
LISTS_WITH_ODD_FIELDS = (
    '[{"at": 5, "attempt": "a", "message": 5, "traceback": {}, "exception": [], "worker": 5, "duration_ms": "a"}]',
    '[{"at": "infinity", "attempt": 1e300, "duration_ms": 1e300, "wait_ms": -1e300, "line": [], "place": {}}]',
    '[{"at": "2026-01-01T00:00:00", "attempt": null, "verb": {}, "by": [], "reason": 5, "times": "a", "until": 5}]',
    '[{"at": "2026-01-01T00:00:00+00:00", "verb": "retry", "by": 5, "attempts": "x", "change": [], "times": {}}]',
    '[{"at": "9999-12-31T23:59:59.999999-14:00", "message": "a", "duration_ms": 1e17, "times": 1e400}]',
)
ODD_NUMBERS = ("'NaN'", "'infinity'", "'-infinity'", "-1")
ODD_TIMES = (
    "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'294276-01-01'", "'9999-12-31 23:59:59+00'", "'0001-01-01'",
)  # fmt: skip

ODD_JSON_VALUES: dict[str, tuple[str, ...]] = {
    "args": NOT_A_LIST,
    "kwargs": NOT_AN_OBJECT,
    "result": (f"{DIGITS}", DEEP_LIST, "null", LONG_NUMBER),
    "errors": (*LISTS_WITH_ODD_ENTRIES, *LISTS_WITH_ODD_FIELDS),
    "metadata": (*NOT_AN_OBJECT, '{"schedule": 5}', '{"progress": 5}', '{"progress": {"edges": 5}}', '{"sentry": 5}'),
    "operations": (*LISTS_WITH_ODD_ENTRIES, *LISTS_WITH_ODD_FIELDS),
    "progress": (*NOT_AN_OBJECT, '{"value": 0.5, "at": 5, "text": []}', '{"value": 1e400}', '{"value": "a"}'),
    "logs": (
        *NOT_A_LIST,
        "[5]",
        '[{"lines": 5}]',
        '[{"lines": [5, [], [1, 2, 3, 4]], "started": 5}]',
        LISTS_WITH_ODD_FIELDS[0],
    ),
    "retention": NOT_AN_OBJECT,
    "deaths": (*LISTS_WITH_ODD_ENTRIES, *LISTS_WITH_ODD_FIELDS),
}
ODD_SQL_VALUES: dict[str, tuple[str, ...]] = {
    "timeout": ODD_NUMBERS,
    "unique_seconds": ODD_NUMBERS,
    "rate_interval": ODD_NUMBERS,
    "rate_burst": ("-1", "0", "32767"),
    "capacity": ("-1", "0", "32767"),
    "attempts": ("-1", "-32768", "32767"),
    "max_attempts": ("-1", "0", "32767"),
    "lease": ("-9223372036854775808", "9223372036854775807"),
    "batch_id": ("-1", "9223372036854775807"),
    "task": ("''", "'a.'", "'.'", "repeat('x', 1000)"),
    "queue_name": ("''", "repeat('x', 1000)"),
    "locked_by": ("''", "repeat('x', 100000)", "'carrier:none'"),
    "last_error": ("repeat('x', 1000000)",),
    "unique_key": ("''", "repeat('x', 2000)"),
    "limit_key": ("''", "repeat('x', 2000)", "'queue:'"),
    "limit_kind": ("''", "'none'"),
    "rate_key": ("''", "'queue:'"),
    "enqueued_at": ODD_TIMES,
    "run_after": ODD_TIMES,
    "started_at": ODD_TIMES,
    "finished_at": ODD_TIMES,
    "locked_at": ODD_TIMES,
    "unknown_since": ODD_TIMES,
}
INSERT = """
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, gate, attempts, locked_at, finished_at, lease)
VALUES (
    'default', 'tests.app.jobs.gather', '[1]', '{}', %(status)s,
    CASE WHEN %(status)s = 'blocked' THEN 'held' END, 1, now(),
    CASE WHEN %(status)s IN ('failed', 'completed') THEN now() END, 2
)
RETURNING id
"""
STATUSES = ("running", "blocked", "failed", "completed")


def odd_values() -> Iterator[tuple[str, str]]:
    """Yield each column of a job with each odd value for this column, as SQL."""
    for column, values in ODD_JSON_VALUES.items():
        yield from ((column, f"'{value}'::jsonb") for value in values)
    for column, values in ODD_SQL_VALUES.items():
        yield from ((column, value) for value in values)


STATUS_OFFSETS = [0, *(pytest.param(offset, marks=pytest.mark.slow) for offset in (1, 2, 3))]
"""Offsets for choosing the status of a job. With all four offsets, each odd value is in a job of each status."""


@pytest.fixture(params=STATUS_OFFSETS)
def odd_jobs(request: pytest.FixtureRequest) -> dict[int, str]:
    """Make a job with each odd value that PostgreSQL accepts. Returns column, value and status by id."""
    descriptions = {}
    with connection.cursor() as cursor:
        for number, (column, value) in enumerate(odd_values()):
            status = STATUSES[(number + request.param) % len(STATUSES)]
            cursor.execute(INSERT, {"status": "failed" if column == "finished_at" else status})
            ((pk,),) = cursor.fetchall()
            try:
                cursor.execute(f"UPDATE skipqueue_job SET {column} = {value} WHERE id = {pk}")
            except IntegrityError:
                cursor.execute(f"DELETE FROM skipqueue_job WHERE id = {pk}")
            else:
                descriptions[pk] = f"{column} = {value[:60]} {status}"
    return descriptions


def test_every_list_shows_odd_jobs(operator: Client, odd_jobs: dict[int, str], subtests: pytest.Subtests) -> None:
    for address in (
        "", "?status=running", "?status=blocked", "?status=failed", "?status=completed", "?q=x", "?q=a%3D5",
        "?status=failed&q=5", "?time=day", "?runs=5", "dashboard/", "failures/", "limits/", "doctor/",
    ):  # fmt: skip
        for page_number in (1, 2, 3, 4):
            with subtests.test(address, page=page_number):
                separator = "&" if "?" in address else "?"
                page_query = f"{separator}p={page_number}" if page_number > 1 else ""
                response = operator.get(f"{LIST}{address}{page_query}")
                assert response.status_code in (200, 302)
            if address.endswith("/"):
                break


def test_the_pages_of_odd_jobs_show_them(operator: Client, odd_jobs: dict[int, str], subtests: pytest.Subtests) -> None:
    for pk, name in odd_jobs.items():
        for view in ("change", "history"):
            with subtests.test(name, view=view):
                response = operator.get(page(view, pk))
                assert response.status_code == 200
                assert "hunter22" not in response.text


@pytest.mark.slow
def test_every_verb_answers_for_odd_jobs(operator: Client, odd_jobs: dict[int, str], subtests: pytest.Subtests) -> None:
    for pk, name in odd_jobs.items():
        column = name.partition(" ")[0]
        if column not in ("args", "kwargs", "metadata", "errors", "operations", "retention"):
            continue
        with subtests.test(name, view="limits"):
            assert operator.get(f"{LIST}?status=blocked&limit_of={pk}").status_code == 200
        for verb in ("run_again", "edit", "retry", "discard"):
            with subtests.test(name, verb=verb):
                if verb in ("run_again", "edit"):
                    assert operator.get(page(verb, pk), follow=True).status_code == 200
                assert operator.post(page(verb, pk), {"confirmed": "yes"}, follow=True).status_code == 200


def test_a_copy_of_an_odd_job_has_no_placeholder_for_unreadable_json(
    operator: Client, odd_jobs: dict[int, str]
) -> None:
    for pk in odd_jobs:
        operator.post(page("run_again", pk), {"confirmed": "yes"})
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM skipqueue_job AS job WHERE job::text LIKE %s", [f"%{UNREADABLE[1:-1]}%"])
        assert cursor.fetchone() == (0,)


@pytest.mark.slow
def test_the_commands_print_odd_jobs(odd_jobs: dict[int, str], subtests: pytest.Subtests) -> None:
    for command in (["list", "--limit", "500"], ["status"], ["limits"], ["doctor"], ["health"]):
        for more in ([], ["--json"]) if command[0] != "health" else ([],):
            with subtests.test(" ".join([*command, *more])):
                assert skipqueue(*command, *more).code in (Exit.DONE, Exit.ERROR, Exit.NEGATIVE)
    for pk, name in odd_jobs.items():
        with subtests.test(name):
            assert skipqueue("show", pk).code == 0
            assert skipqueue("show", pk, "--json").code == 0


CALLBACKS = (*NOT_AN_OBJECT, '{"on_finish": 5}', '{"on_success": {"task": 5, "args": 5}}', '{"surprise": [null]}')
OTHER_MODELS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "schedule": (
        "INSERT INTO skipqueue_schedule (name, task, cron, {column})"
        " VALUES ('s', 'tests.app.jobs.gather', '@daily', {value})",
        {
            "args": NOT_A_LIST,
            "kwargs": NOT_AN_OBJECT,
            "timezone": ("''", "'Mars'"),
            "jitter": ODD_NUMBERS,
            "next_run_at": ODD_TIMES,
        },
    ),
    "jobbatch": (
        "INSERT INTO skipqueue_batch (callbacks, {column}) VALUES ('{{}}', {value})",
        {
            "finished_at": ODD_TIMES,
            "created_at": ODD_TIMES,
            "callback_ids": ("ARRAY[1, NULL]::bigint[]",),
            "completed": ("-1",),
        },
    ),
    "jobbatch with callbacks": (
        "INSERT INTO skipqueue_batch (name, {column}) VALUES ('b', {value})",
        {"callbacks": CALLBACKS},
    ),
    "worker": (
        "INSERT INTO skipqueue_worker (id, name, hostname, pid, concurrency, queues, {column})"
        " VALUES ('w:0123456789ab', 'w', 'h', 1, 1, '[]', {value})",
        {"heartbeat_at": ODD_TIMES, "started_at": ODD_TIMES, "memory_mb": ("-1",)},
    ),
    "worker with queues": (
        "INSERT INTO skipqueue_worker (id, name, hostname, pid, concurrency, {column})"
        " VALUES ('w:0123456789ab', 'w', 'h', 1, 1, {value})",
        {"queues": (*NOT_A_LIST, "[5]", "[null]", "[[]]")},
    ),
    "queue": (
        "INSERT INTO skipqueue_queue (name, {column}) VALUES ('q', {value})",
        {"paused_at": ODD_TIMES, "paused_until": ODD_TIMES, "concurrency": ("32767",)},
    ),
}
"""For each other model, an INSERT and the odd values of each column."""


@pytest.mark.slow
def test_the_pages_of_other_models_show_odd_rows(operator: Client, subtests: pytest.Subtests) -> None:
    root = "/admin/django_skipqueue/"
    for name, (statement, columns) in OTHER_MODELS.items():
        model = name.partition(" ")[0]
        for column, values in columns.items():
            for value in values:
                sql_value = f"'{value}'::jsonb" if column in ("args", "kwargs", "callbacks", "queues") else value
                with subtests.test(name, column=column, value=value[:60]), connection.cursor() as cursor:
                    try:
                        cursor.execute(f"{statement.format(column=column, value=sql_value)} RETURNING *")
                    except IntegrityError:
                        continue
                    pk = cursor.fetchone()[0]
                    addresses_of_row = (f"{model}/{quote(pk)}/{view}/" for view in ("change", "history"))
                    try:
                        responses = [
                            operator.get(root + address)
                            for address in (f"{model}/", *addresses_of_row, "job/dashboard/")
                        ]
                    finally:
                        cursor.execute(f"DELETE FROM {statement.split()[2]}")
                    assert {response.status_code for response in responses} == {200}
                    assert not any("hunter22" in response.text for response in responses)


ACTION = {"action": "retry_selected", "query": "", "site": "admin", "user_id": 1, "user": "ann", "number": 2}
"""Arguments of a bulk action."""


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"surprise": 1},
        ACTION | {"surprise": 1},
        ACTION | {"action": "explode"},
        ACTION | {"action": []},
        ACTION | {"number": "two"},
        ACTION | {"query": 5},
        ACTION | {"model": "rollup"},
        [ACTION],
    ],
)
def test_a_bulk_action_with_invalid_arguments_has_no_progress_page(operator: Client, kwargs: Any) -> None:
    job = make_job("running", task=BULK_TASK, kwargs=kwargs)
    assert operator.get(page("progress", job.pk)).status_code == 404
    assert operator.get(page("change", job.pk)).status_code == 200


@pytest.mark.parametrize(
    "progress", [5, {}, {"edges": 5}, {"edges": [1], "newest": 1}, {"edges": [None, None], "newest": "a"}]
)
def test_the_progress_page_ignores_invalid_progress(operator: Client, progress: Any) -> None:
    job = make_job("running", task=BULK_TASK, kwargs=ACTION, metadata={"progress": progress})
    assert "0 of 2 jobs" in operator.get(page("progress", job.pk)).text
