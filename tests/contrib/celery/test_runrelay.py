"""`manage.py runrelay`: its options, its errors, and how an operator takes back the jobs of a carrier."""

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.contrib.celery.carrier import carrier_id, home_of
from django_skipqueue.contrib.celery.management.commands import runrelay as command
from django_skipqueue.contrib.celery.relay import RelayOptions
from django_skipqueue.models import Job, Worker

from ...app.rows import make_job, make_worker
from ...app.waiting import wait_until
from ...harness.processes import ManagePy
from ...supervisor.test_health import free_port, has_status, metrics

StartProcess = Callable[..., ManagePy]

CELERY = {"APP": "tests.app.celery_app.app", "QUEUES": {"pdf": "pdf", "import": "slow"}}
ONE_CARRIER = {"CARRIERS": {"celery": CELERY}}
TWO_CARRIERS = {"CARRIERS": {"celery": CELERY, "rabbit": CELERY | {"QUEUES": {"mail": "mail"}}}}

uses_database = pytest.mark.django_db(transaction=True)
both_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def without_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SKIPQUEUE_")]:
        monkeypatch.delenv(name)


def relay_options(*arguments: str) -> list[RelayOptions]:
    """Return the options that the command makes of these arguments, one for the supervisor of each database."""
    parsed = vars(command.Command().create_parser("manage.py", "runrelay").parse_args(list(arguments)))
    all_options = command.Command().options_of_loops(command.chosen(parsed["carrier"]), parsed)
    return [options for options in all_options if isinstance(options, RelayOptions)]


# Options of runrelay


def test_the_only_carrier_need_not_be_named(settings: Any) -> None:
    settings.SKIPQUEUE = ONE_CARRIER
    [options] = relay_options()
    assert (options.carrier, options.queue_names, options.processes) == ("celery", ("pdf", "import"), 1)
    assert all(map(options.serves, ("pdf", "import")))
    assert not options.serves("mail")
    assert re.fullmatch(r".+:\d+", options.name)


def test_with_several_carriers_the_command_line_must_name_one(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SKIPQUEUE = TWO_CARRIERS
    [options] = relay_options("--carrier", "rabbit")
    assert (options.carrier, options.queue_names) == ("rabbit", ("mail",))
    with pytest.raises(CommandError, match="There are several carriers: use --carrier celery or --carrier rabbit"):
        relay_options()
    monkeypatch.setenv("SKIPQUEUE_CARRIER", "celery")
    assert relay_options()[0].carrier == "celery"


def test_an_unknown_carrier_is_refused_with_a_suggestion(settings: Any) -> None:
    settings.SKIPQUEUE = TWO_CARRIERS
    with pytest.raises(CommandError, match=r"has no carrier 'celry'\. Did you mean 'celery'\?"):
        relay_options("--carrier", "celry")


def test_without_carriers_there_is_nothing_to_relay() -> None:
    with pytest.raises(CommandError, match=r"SKIPQUEUE\['CARRIERS'\] contains no carrier"):
        relay_options()


def test_runrelay_takes_options_of_runworker_for_the_relays_of_each_database(settings: Any) -> None:
    settings.SKIPQUEUE = ONE_CARRIER | {"POLL_INTERVAL": 7}
    of_default, of_other = relay_options(
        "--database", "default,other", "--name", "r", "--processes", "3", "--no-listen", "--worker-timeout", "20"
    )
    assert (of_default.name, of_default.database) == ("r@default", "default")
    assert (of_other.name, of_other.database) == ("r@other", "other")
    assert (of_default.processes, of_default.listen) == (3, False)
    assert (of_default.poll_interval, of_default.worker_timeout) == (7, 20)


@uses_database
@pytest.mark.parametrize(
    ("arguments", "skipqueue", "expected"),
    [
        ((), {}, "SKIPQUEUE['CARRIERS'] contains no carrier, so there is nothing to relay."),
        ((), TWO_CARRIERS, "There are several carriers: use --carrier celery or --carrier rabbit."),
        (("--carrier", "celry"), ONE_CARRIER, "Did you mean 'celery'?"),
        ((), {"CARRIERS": {"celery": CELERY | {"APP": "shop.no_celery.app"}}}, "skipqueue.E011"),
        ((), {"CARRIERS": {"celery": {"APP": "shop.celery.app"}}}, "lacks the key 'QUEUES'"),
    ],
    ids=["no carrier", "several", "unknown", "no app", "no queues"],
)
def test_an_error_at_the_start_of_runrelay_has_no_traceback(
    manage: StartProcess, arguments: list[str], skipqueue: dict[str, Any], expected: str
) -> None:
    process = manage("runrelay", *arguments, skipqueue=skipqueue)
    assert process.wait() == 1
    assert expected in process.log
    assert "Traceback" not in process.log


@uses_database
def test_runrelay_introduces_itself_and_waits_for_a_carrier_that_cannot_be_reached(manage: StartProcess) -> None:
    process = manage("runrelay", "--name", "box", "--processes", "2", skipqueue=ONE_CARRIER)
    process.wait_for("carrier lost worker=box/2")
    for expected in (
        "box hands jobs over to the carrier celery",
        "2 processes, at most 2,000 jobs at the carrier, on database 'default'",
        "2 queues, each with its Celery queue in tests.app.celery_app.app: pdf (pdf), import (slow)",
        "woken by NOTIFY, and every 2 s; stop with Ctrl-C or SIGTERM",
    ):
        assert expected in process.log
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert Worker.objects.get().is_external, "the row of the carrier stays, and the rows of the relays are deleted"


@uses_database
def test_the_metrics_of_a_relay_have_its_window_in_place_of_slots(manage: StartProcess) -> None:
    make_carried_jobs(3)
    port = free_port()
    manage("runrelay", "--health-port", str(port), skipqueue=ONE_CARRIER)
    wait_until(lambda: has_status(port, "/readyz", 200), "ready")
    wait_until(lambda: metrics(port).get("jobs_carried{1}") == 3, "the relay has counted the jobs")
    values = metrics(port)
    assert (values["up{1}"], values["window_room{1}"]) == (1, 0), "the broker cannot be reached"
    assert not values.keys() & {"slots{1}", "slots_free{1}", "jobs_running{1}"}


# Reclaim: an operator takes back the jobs that a carrier holds


def make_carried_jobs(count: int, *, carrier: str = "celery", using: str = "default") -> list[Job]:
    """Make jobs that a carrier holds, in their second attempt."""
    holder = carrier_id(carrier)
    return [make_job("running", locked_by=holder, attempts=2, queue_name="pdf", using=using) for _ in range(count)]


def reclaim(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    call_command("runrelay", "--reclaim", *arguments)
    return capsys.readouterr().out


@uses_database
@override_settings(SKIPQUEUE=ONE_CARRIER)
def test_reclaim_releases_only_the_jobs_that_the_carrier_holds(capsys: pytest.CaptureFixture[str]) -> None:
    make_worker(id=carrier_id("celery"), name="celery", is_external=True)
    carried_jobs = make_carried_jobs(3)
    jobs_of_others = [make_job("running", locked_by="w:0123456789ab"), *make_carried_jobs(1, carrier="rabbit")]
    assert reclaim("celery", "--yes", capsys=capsys) == "default: 3 jobs of celery released.\n"
    released = Job.objects.filter(pk__in=[job.pk for job in carried_jobs])
    assert set(released.values_list("status", "attempts", "lease", "locked_by")) == {("queued", 1, 2, "")}
    assert set(Job.objects.running()) == set(jobs_of_others)
    assert reclaim("celery", capsys=capsys) == "default: 0 jobs of celery released.\n", (
        "without jobs, the command does not ask"
    )


@both_databases
@override_settings(SKIPQUEUE=ONE_CARRIER | {"DATABASES": ("default", "other")})
def test_reclaim_releases_the_jobs_in_all_databases(capsys: pytest.CaptureFixture[str]) -> None:
    make_carried_jobs(2)
    make_carried_jobs(1, using="other")
    output = reclaim("celery", "--yes", capsys=capsys)
    assert output.splitlines() == ["default: 2 jobs of celery released.", "other: 1 job of celery released."]
    make_carried_jobs(1)
    make_carried_jobs(1, using="other")
    assert reclaim("celery", "--yes", "--database", "other", capsys=capsys) == "other: 1 job of celery released.\n"
    assert Job.objects.running().count() == 1


@both_databases
@override_settings(SKIPQUEUE=ONE_CARRIER)
def test_reclaim_releases_jobs_in_one_database_if_another_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    make_carried_jobs(1)
    with pytest.raises(CommandError, match="nosuch"):
        reclaim("celery", "--yes", "--database", "nosuch,default", capsys=capsys)
    assert capsys.readouterr().out == "default: 1 job of celery released.\n"


@uses_database
@override_settings(SKIPQUEUE=ONE_CARRIER)
def test_reclaim_accepts_a_carrier_that_the_settings_no_longer_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_worker(id=carrier_id("old"), name="old", is_external=True)
    make_carried_jobs(1, carrier="old")
    assert reclaim("old", "--yes", capsys=capsys) == "default: 1 job of old released.\n"


@uses_database
def test_reclaim_refuses_an_unknown_carrier() -> None:
    with pytest.raises(CommandError, match=r"There is no carrier 'celry'\. No relay has ever served a carrier"):
        call_command("runrelay", "--reclaim", "celry", "--yes")
    with (
        override_settings(SKIPQUEUE=ONE_CARRIER),
        pytest.raises(CommandError, match=r"There is no carrier 'celry'\. Did you mean 'celery'\?"),
    ):
        call_command("runrelay", "--reclaim", "celry", "--yes")


@uses_database
def test_reclaim_asks_before_it_changes_anything(manage: StartProcess) -> None:
    make_carried_jobs(2)
    process_without_terminal = manage("runrelay", "--reclaim", "celery", skipqueue=ONE_CARRIER)
    assert process_without_terminal.wait() == Exit.USAGE
    assert "Cannot ask whether to release 2 jobs of the carrier celery" in process_without_terminal.log
    for answer, code in (("n", Exit.NEGATIVE), ("y", Exit.DONE)):
        assert Job.objects.running().count() == 2
        process = manage("runrelay", "--reclaim", "celery", skipqueue=ONE_CARRIER, terminal=True)
        process.wait_for("Release 2 jobs of the carrier celery? Jobs that it has not lost will run twice. [y/N]")
        process.type(f"{answer}\n")
        assert process.wait() == code
    assert not Job.objects.running().exists()


@uses_database
def test_reclaim_does_not_release_jobs_that_a_relay_hands_over_meanwhile(manage: StartProcess) -> None:
    make_carried_jobs(2)
    process = manage("runrelay", "--reclaim", "celery", skipqueue=ONE_CARRIER, terminal=True)
    process.wait_for("Release 2 jobs of the carrier celery?")
    [newer_job] = make_carried_jobs(1)
    process.type("y\n")
    assert process.wait() == 0, "the command does not say that a row is locked"
    assert "2 jobs of celery released" in process.log
    assert list(Job.objects.running()) == [newer_job]


@uses_database
@override_settings(SKIPQUEUE=ONE_CARRIER)
def test_reclaim_says_that_a_row_is_locked(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    locked_job, _ = make_carried_jobs(2)
    locking_session = session()
    locking_session.begin()
    locking_session(lambda: list(Job.objects.select_for_update().filter(pk=locked_job.pk)))
    with pytest.raises(CommandError, match="default: 1 job could not be released, because other transactions have"):
        reclaim("celery", "--yes", capsys=capsys)
    assert capsys.readouterr().out == "default: 1 job of celery released.\n"
    locking_session.rollback()
    assert reclaim("celery", "--yes", capsys=capsys) == "default: 1 job of celery released.\n"


# The topology, which an administrator may declare instead of the relays


@both_databases
def test_the_topology_is_shown_as_definitions_that_rabbitmq_imports(settings: Any, capsys: Any) -> None:
    settings.SKIPQUEUE = ONE_CARRIER
    call_command("runrelay", "--show-topology", "--database", "default,other")
    definitions = json.loads(capsys.readouterr().out)
    rows_of_carriers = {
        alias: Worker.objects.using(alias).get(pk=carrier_id("celery")) for alias in ("default", "other")
    }
    homes = [home_of(alias, row.started_at) for alias, row in rows_of_carriers.items()]
    own_queues = {f"skipqueue.{kind}.{home}" for kind in ("outcomes", "back") for home in homes}
    assert {definition["name"] for definition in definitions["exchanges"]} == {"skipqueue.back", "skipqueue.foreign"}
    queue_names = {definition["name"] for definition in definitions["queues"]}
    assert queue_names == {"skipqueue.foreign", "pdf", "slow", *own_queues}
    assert {definition["arguments"]["x-queue-type"] for definition in definitions["queues"]} == {"quorum"}
    assert {(definition["source"], definition["destination"]) for definition in definitions["bindings"]} == {
        ("skipqueue.foreign", "skipqueue.foreign"),
        *(("skipqueue.back", f"skipqueue.back.{home}") for home in homes),
    }
    [permission] = definitions["permissions"]
    assert (permission["user"], permission["configure"], permission["vhost"]) == ("guest", "^$", "/")
    readable = {queue_name for queue_name in queue_names if re.search(permission["read"], queue_name)}
    assert readable == {"pdf", "slow", *own_queues}
    call_command("runrelay", "--show-topology", "--database", "default,other")
    assert json.loads(capsys.readouterr().out) == definitions, "the names of the queues do not change"


@uses_database
def test_the_topology_of_a_carrier_that_cannot_be_made_is_explained(settings: Any) -> None:
    settings.SKIPQUEUE = {"CARRIERS": {"celery": CELERY | {"APP": "tests.app.celery_app.nothing"}}}
    with pytest.raises(CommandError, match="cannot be imported"):
        call_command("runrelay", "--show-topology")
