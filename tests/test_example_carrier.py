"""The example project can run with Celery: with `make demo CARRIER=celery`, Celery's workers send the e-mails."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import yaml
from django.core.management import load_command_class

from payments.mailbox import Mailbox
from scripts.embedded_rabbitmq import program

from .app.waiting import wait_until
from .harness.rabbitmq import REQUIRED
from .test_example_project import FIGURES, MANAGE, completed, server_url  # noqa: F401 (a fixture)

COUNT_WAITS = """
    SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%COUNT("skipqueue_job"."id")%'
"""
"""Returns a row if the statement by which the demo counts its jobs waits for a lock."""

pytestmark = pytest.mark.slow  # each test runs the demo with RabbitMQ and Celery

WITH_RABBITMQ = MANAGE.parent.parent / "scripts" / "with_rabbitmq.py"

needs_rabbitmq = pytest.mark.skipif(program() is None and not REQUIRED, reason="RabbitMQ is not installed.")


@pytest.fixture
def environment(server_url: str, broker_url: str, tmp_path: Path) -> dict[str, str]:  # noqa: F811
    variables = {
        **os.environ,
        "DATABASE_URL": server_url,
        "EMAIL_FILE_PATH": str(tmp_path),
        "CARRIER": "celery",
        "CELERY_BROKER_URL": broker_url,
    }
    del variables["DJANGO_SETTINGS_MODULE"]
    return variables


@pytest.fixture
def demo(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, MANAGE, "demo"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_celery_sends_every_receipt_once(
    demo: subprocess.Popen[str], environment: dict[str, str], tmp_path: Path
) -> None:
    output, errors = demo.communicate()
    assert demo.returncode == 0, errors
    assert FIGURES in output
    assert "the attempts that failed name celery@" in output
    assert len(list(Mailbox(tmp_path).receipts())) == 410
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        counts_by_holder = connection.execute(
            "SELECT split_part(locked_by, ':', 1), count(*) FROM skipqueue_job WHERE queue_name = 'emails' GROUP BY 1"
        ).fetchall()
        workers = connection.execute("SELECT name FROM skipqueue_worker").fetchall()
    assert sum(count for _, count in counts_by_holder) == 412, "the jobs of two blocked addresses fail"
    assert "celery" in dict(counts_by_holder)
    assert workers == [("celery",)], "only the carrier's row stays"


@pytest.mark.timeout(300)
def test_sigterm_ends_all_processes_of_the_demo_and_leaves_no_job_running(
    demo: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    url = environment["DATABASE_URL"]
    wait_until(lambda: completed(url) >= 1, "Celery runs the jobs", deadline=120)
    child_processes = psutil.Process(demo.pid).children(recursive=True)
    assert {"runworker", "runrelay", "celery"} <= {word for process in child_processes for word in process.cmdline()}
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: connection.execute(COUNT_WAITS).fetchone() is not None, "the demo waits for an answer")
        demo.send_signal(signal.SIGTERM)
        wait_until(lambda: ignores(signal.SIGTERM, demo.pid), "the demo has received the signal")
    _, errors = demo.communicate()
    assert (demo.returncode, "Stopped." in errors) == (128 + signal.SIGTERM, True), errors
    wait_until(lambda: not any(process.is_running() for process in child_processes), "nothing is left")
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM skipqueue_job WHERE status = 'running'").fetchone()
    assert row == (0,)


class TestWithRabbitMQ:
    """`scripts/with_rabbitmq.py` runs a command with the URL of a broker."""

    PRINT_URL = [sys.executable, "-c", "import os; print(os.environ['CELERY_BROKER_URL'], flush=True); input()"]

    def start(self, **environment: str) -> "subprocess.Popen[str]":
        inherited = {name: value for name, value in os.environ.items() if name != "CELERY_BROKER_URL"}
        return subprocess.Popen(
            [sys.executable, WITH_RABBITMQ, *self.PRINT_URL],
            env={**inherited, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def test_a_broker_named_in_the_environment_is_used(self) -> None:
        with self.start(CELERY_BROKER_URL="amqp://elsewhere//", PATH="/nowhere") as process:
            output, errors = process.communicate("\n")
        assert (process.returncode, output, errors) == (0, "amqp://elsewhere//\n", "")

    def test_without_rabbitmq_the_script_says_how_to_install_it(self) -> None:
        with self.start(PATH="/nowhere") as process:
            output, errors = process.communicate()
        assert (process.returncode, output) == (1, "")
        assert "sudo apt-get install --no-install-recommends rabbitmq-server" in errors

    @needs_rabbitmq
    @pytest.mark.timeout(300)
    def test_sigterm_ends_all_processes_of_rabbitmq_and_removes_its_folder(self) -> None:
        with self.start() as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert lines[0] == "RabbitMQ starts.\n"
            assert lines[1].startswith("amqp://")
            child_processes = psutil.Process(process.pid).children(recursive=True)
            (folder,) = {node_folder for process in child_processes if (node_folder := folder_of_node(process))}
            assert folder.is_dir()
            process.send_signal(signal.SIGTERM)
            process.wait()  # not `communicate`, which would close the input and so end the command before the signal
        assert process.returncode == 128 + signal.SIGTERM
        wait_until(lambda: not any(map(is_alive, child_processes)), "nothing is left")
        assert not folder.exists()


class TestCompose:
    """The files for `docker compose` are consistent. The tests do not run Docker."""

    def services(self, file_name: str) -> dict[str, Any]:
        services: dict[str, Any] = yaml.safe_load((MANAGE.parent / file_name).read_text())["services"]
        return services

    @pytest.mark.parametrize("file_name", ["compose.yaml", "compose.celery.yaml"])
    def test_the_commands_of_a_compose_file_parse(self, file_name: str) -> None:
        apps = {
            "runrelay": "django_skipqueue.contrib.celery",
            "runworker": "django_skipqueue",
            "runserver": "django.core",
        }
        commands = [service.get("command", []) for service in self.services(file_name).values()]
        django_commands = [command[2:] for command in commands if command[:2] == ["python", "manage.py"]]
        assert django_commands
        for subcommand, *arguments in django_commands:
            load_command_class(apps[subcommand], subcommand).create_parser("manage.py", subcommand).parse_args(
                arguments
            )

    def test_compose_celery_adds_a_broker_and_carrier_settings(self) -> None:
        services, services_with_celery = self.services("compose.yaml"), self.services("compose.celery.yaml")
        assert set(services_with_celery) - set(services) == {"rabbitmq", "relay", "celery"}
        shop_services = (set(services_with_celery) - {"rabbitmq", "postgres"}) | {"setup", "web", "worker"}
        assert {
            name for name in shop_services if services_with_celery[name]["environment"]["CARRIER"] == "celery"
        } == shop_services
        assert "--group example-celery" in services_with_celery["setup"]["build"]["dockerfile_inline"]


def ignores(signal_number: int, pid: int) -> bool:
    """Whether the process ignores the signal. The demo ignores SIGTERM once it has received one."""
    (ignored_signals,) = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(ignored_signals, 16) >> (signal_number - 1) & 1)


def folder_of_node(process: psutil.Process) -> Path | None:
    """The folder of the RabbitMQ node to which a process belongs; `None` if there is no node or no process."""
    try:
        database_folder = process.environ().get("RABBITMQ_MNESIA_BASE")
    except psutil.NoSuchProcess:
        return None
    return Path(database_folder).parent if database_folder else None


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
