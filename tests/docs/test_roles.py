"""The SQL in the section *Database roles* of the page Security makes roles with exactly the rights that they need."""

import re
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.utils import ProgrammingError
from django.test import Client
from psycopg import sql

from django_skipqueue import Batch, job, unique_by
from django_skipqueue.exceptions import QueueUnavailable
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.models.expressions import table_names
from django_skipqueue.worker.preflight import check_database

from ..app import jobs
from ..app.limits import jobs as limited_jobs
from ..app.rates import jobs as rated_jobs
from ..app.rows import make_job
from ..app.waiting import wait_until
from ..console.admin.pages import make_pages
from ..console.cli.running import skipqueue
from ..harness.partitions import drop_partitions
from ..harness.processes import ManagePy, wait_for_statuses
from ..parts.schedules.rows import make_schedule
from .test_pages import PAGES, code_blocks

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = "only for tests"
PREFIX = f"tests_{secrets.token_hex(4)}_"
"""The beginning of the names of all roles of this test run: another run may use the same server at the same time."""

(PAGE,) = (page for page in PAGES if page.stem == "security")
SQL_BLOCKS = [block.code.replace("shop_", PREFIX) for block in code_blocks(PAGE) if block.language == "sql"]
SQL = {found[1]: code for code in SQL_BLOCKS if (found := re.search(rf"CREATE ROLE {PREFIX}(\w+)", code))}
"""The SQL of the page that makes each role, by the name of the role on the page without `shop_`."""
(GRANTS_FOR_CELERY,) = (code for code in SQL_BLOCKS if code not in SQL.values())


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def roles(transactional_db: None) -> Iterator[Mapping[str, str]]:
    """Makes the roles. Yields their names on the server, by their names on the page."""
    assert set(SQL) == {"migrate", "worker", "web", "reader"}
    names = {name: f"{PREFIX}{name}" for name in SQL}
    try:
        for name, statements in SQL.items():
            execute(f"{statements}; ALTER ROLE {names[str(name)]} PASSWORD '{PASSWORD}'")
        execute(GRANTS_FOR_CELERY)
        yield {str(name): role for name, role in names.items()}
    finally:
        for role in names.values():
            execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def acting_as(role: str) -> Iterator[None]:
    """Within this context, the process logs in to the database as the role."""
    django_settings = connections["default"].settings_dict
    original_login = {name: django_settings[name] for name in ("USER", "PASSWORD")}
    connection.close()
    django_settings.update(USER=role, PASSWORD=PASSWORD)
    try:
        yield
    finally:
        connection.close()
        django_settings.update(original_login)


@contextmanager
def refused_for_lack_of_rights() -> Iterator[None]:
    with pytest.raises(ProgrammingError) as error_info:
        yield
    assert isinstance(error_info.value.__cause__, psycopg.errors.InsufficientPrivilege)


def charge(token: str) -> None:
    """A task with a unique key."""


def test_the_role_of_a_web_server_enqueues_jobs_but_cannot_read_arguments(
    roles: Mapping[str, str], registry: Registry
) -> None:
    charge_task = job(unique=unique_by("token"))(charge)
    with acting_as(roles["web"]):
        jobs.noop.defer()
        jobs.noop.defer_many([(), ()])
        limited_jobs.two_per_account.defer("x")
        rated_jobs.hundred_a_minute.defer(1)
        charge_task.defer("abc")
        assert charge_task.defer_many([("abc",), ("def",)])
        for statement in (
            "SELECT args FROM skipqueue_job",
            "SELECT result, last_error FROM skipqueue_job",
            "UPDATE skipqueue_job SET priority = 1",
            "DELETE FROM skipqueue_job",
            "INSERT INTO skipqueue_schedule (name, task, cron) VALUES ('s', 't', '@daily')",
            "INSERT INTO skipqueue_batch (callbacks) VALUES ('{}')",
            "SELECT 1 FROM skipqueue_worker",
            "CREATE TABLE t ()",
        ):
            with refused_for_lack_of_rights():
                execute(statement)
        with refused_for_lack_of_rights():
            charge_task.defer("abc")
        with refused_for_lack_of_rights():
            jobs.noop.using(after=[1]).defer()
    assert Job.objects.count() == 7, "the refused statements and calls have enqueued nothing"


def test_the_optional_grants_let_a_web_server_use_unique_keys_and_batches(
    roles: Mapping[str, str], registry: Registry
) -> None:
    charge_task = job(unique=unique_by("token"))(charge)
    execute(
        f"GRANT SELECT ON skipqueue_job TO {roles['web']}; GRANT SELECT, INSERT ON skipqueue_batch TO {roles['web']}"
    )
    with acting_as(roles["web"]):
        assert charge_task.defer("abc").pk == charge_task.defer("abc").pk
        with Batch(name="b", on_finish=jobs.noop):
            jobs.noop.defer()


def status_as_json() -> Any:
    (status,) = skipqueue("status", "--json").objects
    return status


def test_the_role_of_a_worker_runs_jobs_but_cannot_change_the_schema(
    roles: Mapping[str, str], runworker: Callable[..., ManagePy]
) -> None:
    make_job("scheduled", run_after=timedelta(seconds=-1))
    make_job("completed", finished_at=timedelta(days=-400))  # old enough that the worker prunes it
    make_schedule("s", due=1)
    limited_jobs.two_per_account.defer("x")
    rated_jobs.hundred_a_minute.defer(1)
    jobs.noop.using(after=[jobs.noop.defer()]).defer()
    login = f"DATABASES['default'].update(USER={roles['worker']!r}, PASSWORD={PASSWORD!r})"
    process = runworker(settings=login)
    wait_for_statuses(completed=6)
    wait_until(lambda: any(queue["jobs_per_minute"] for queue in status_as_json()["queues"]), "the runs are counted")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert "permission denied" not in process.log
    with acting_as(roles["worker"]):
        check_database("default")
        assert skipqueue("status").code == 0
        for statement in (
            "CREATE TABLE t ()",
            "ALTER TABLE skipqueue_job ADD COLUMN x integer",
            "TRUNCATE skipqueue_job",
            "DROP TABLE skipqueue_job",
            "INSERT INTO django_migrations (app, name, applied) VALUES ('x', 'x', now())",
            "SELECT 1 FROM auth_user",
        ):
            with refused_for_lack_of_rights():
                execute(statement)


def test_a_worker_whose_role_cannot_read_the_migrations_reports_the_lacking_right(roles: Mapping[str, str]) -> None:
    execute(f"REVOKE SELECT ON django_migrations FROM {roles['worker']}")
    with acting_as(roles["worker"]), pytest.raises(QueueUnavailable) as error_info:
        check_database("default")
    assert str(error_info.value) == (
        "The role that logs in to the database 'default' lacks a right: permission denied for table django_migrations. "
        "A worker reads django_migrations, and needs the rights on the queue's tables that the page Security "
        "of the documentation lists."
    )


TABLES_OF_DJANGO = "auth_user, auth_permission, auth_user_user_permissions, auth_group, auth_group_permissions, "
TABLES_OF_DJANGO += "auth_user_groups, django_content_type, django_session, django_admin_log"


def test_the_role_of_a_reader_sees_every_admin_page_but_changes_nothing(
    roles: Mapping[str, str], settings: Any, registry: Registry, subtests: pytest.Subtests
) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}
    superuser = Client()
    superuser.force_login(User.objects.create_superuser("boss"))
    addresses = make_pages()
    job_id = Job.objects.failed().order_by("pk")[0].pk
    execute(f"GRANT SELECT ON {TABLES_OF_DJANGO} TO {roles['reader']}")
    try:
        with acting_as(roles["reader"]):
            for name, address in addresses.items():
                with subtests.test(name):
                    assert superuser.get(f"/admin/{address}").status_code == 200
            for command in ("list", "status", "limits", "batches", "schedules", "health", "doctor", f"show {job_id}"):
                with subtests.test(command):
                    assert skipqueue(*command.split()).code in (0, 3)
            changes: list[Callable[[], object]] = [
                lambda: jobs.noop.defer(),
                lambda: Job.objects.get(pk=job_id).retry(),
                lambda: Job.objects.filter(pk=job_id).delete(),
                lambda: Schedule.objects.create(name="s", task="t", cron="@daily"),
                lambda: execute("CREATE TABLE t ()"),
            ]
            for change in changes:
                with refused_for_lack_of_rights():
                    change()
    finally:
        drop_partitions()


@pytest.fixture
def empty_database(transactional_db: None) -> Iterator[str]:
    """The name of a database without tables."""
    name = f"{PREFIX}empty"
    with psycopg.connect(**parameters(), autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def parameters(**options: str) -> dict[str, Any]:
    params = connection.get_connection_params()
    return {name: params[name] for name in ("host", "port", "user", "password", "dbname") if name in params} | options


def test_the_role_of_migrations_creates_the_tables_and_grants_rights_to_the_other_roles(
    roles: Mapping[str, str], empty_database: str, manage: Callable[..., ManagePy]
) -> None:
    with psycopg.connect(**parameters(dbname=empty_database), autocommit=True) as session:
        session.execute(SQL["migrate"].partition(";")[2])
    login = f"DATABASES['default'].update(NAME={empty_database!r}, USER={roles['migrate']!r}, PASSWORD={PASSWORD!r})"
    process = manage("migrate", settings=login)
    assert process.wait() == 0, process.log
    with psycopg.connect(**parameters(dbname=empty_database), autocommit=True) as session:
        owners = session.execute("SELECT tableowner FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert set(owners) == {(roles["migrate"],)}
        for name in ("worker", "web", "reader"):
            session.execute(SQL[name].partition(";")[2])
        for name in ("migrate", "worker", "web", "reader"):
            session.execute(f"DROP OWNED BY {roles[name]} CASCADE")


def test_the_grants_on_the_page_name_every_table_of_the_app() -> None:
    for name in ("worker", "reader"):
        tables_in_grants = set(re.findall(r"skipqueue_\w+", SQL[name]))
        assert tables_in_grants == set(table_names())
