"""The README's example runs, and the reference documents exactly the names that the code has.

The tests run the example as a new user would: in a new project, on a new database, by the commands of the README.
"""

import ast
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import psycopg
import pytest
from django.apps import apps
from django.core.management import find_commands, load_command_class
from django.core.management.base import CommandParser
from django.db import connections
from django.dispatch import Signal
from psycopg import sql

from django_skipqueue import conf, exceptions, signals
from django_skipqueue.console.cli.change_jobs import ChangeJobs
from django_skipqueue.console.cli.options import add_criteria
from django_skipqueue.console.cli.subcommand import Alias, Exit, Subcommand, Watchable
from django_skipqueue.contrib.celery import settings as carriers
from django_skipqueue.jobs.options import CORE_OPTIONS, NAMES_OF_OPTIONS, TaskOptions, UsingOptions
from django_skipqueue.management.commands.skipqueue import Command as SkipQueue
from django_skipqueue.models import Job, Status
from django_skipqueue.values import link_template, outcomes

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
README = (ROOT / "README.md").read_text()
APPS = ("django_skipqueue", "django_skipqueue.contrib.celery")
COMMANDS = {name: app for app in APPS for name in find_commands(str(ROOT / app.replace(".", "/") / "management"))}
"""The app of each command."""

SETTINGS = """
import json, os
DATABASES = json.loads(os.environ["README_DATABASES"])
SECRET_KEY = "only-for-this-test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "outbox"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "shop.urls"
"""

URLS = """
from django.urls import path
from accounts.views import sign_up
urlpatterns = [path("sign-up/", sign_up)]
"""

SIGN_UP = """
from django.test import Client
print(Client().post("/sign-up/", {"name": "ada", "email": "ada@example.com"}).content.decode())
"""

PRINT_JOBS = """
from django_skipqueue.models import Job
print(list(Job.objects.values("task", "status", "attempts", "result").order_by("id")))
"""


# The README


def python_blocks() -> list[str]:
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", code, flags=re.MULTILINE) for indent, code in blocks]


def readme_block(start: str) -> str:
    """The Python block of the README that begins with this text."""
    return next(code for code in python_blocks() if code.startswith(start))


@pytest.fixture
def database(django_db_setup: None) -> Iterator[dict[str, object]]:
    """The settings for Django of a new, empty database."""
    settings = connections["default"].settings_dict
    name = f"readme_{uuid.uuid4().hex[:12]}"
    parameters = connections["default"].get_connection_params()
    connection_parameters = {
        key: value for key, value in parameters.items() if isinstance(value, str | int) and key != "dbname"
    }
    connection_parameters.pop("context", None)
    with psycopg.connect(**{**connection_parameters, "dbname": "postgres"}, autocommit=True) as admin:  # type: ignore[arg-type]
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield {key: settings[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")} | {"NAME": name}
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Project:
    """A new project whose only app has the code of the README's example."""

    def __init__(self, folder: Path, database: dict[str, object]) -> None:
        self.folder = folder
        apps = readme_block("INSTALLED_APPS = [").replace(
            "# …", '"django.contrib.auth", "django.contrib.contenttypes",'
        )
        for name, code in {
            "shop/__init__.py": "",
            "shop/settings.py": SETTINGS + apps + 'INSTALLED_APPS += ["accounts"]\n',
            "shop/settings_of_install.py": SETTINGS + apps,
            "shop/urls.py": URLS,
            "accounts/__init__.py": "",
            "accounts/jobs.py": readme_block("# accounts/jobs.py"),
            "accounts/views.py": readme_block("# accounts/views.py"),
        }.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SKIPQUEUE_")},
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "README_DATABASES": json.dumps({"default": database}),
        }

    def manage(self, *arguments: str, stdin: str = "") -> str:
        process = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout


def test_the_install_steps_of_the_readme_work_without_its_example_app(
    tmp_path: Path, database: dict[str, object]
) -> None:
    project = Project(tmp_path, database)
    project.environment["DJANGO_SETTINGS_MODULE"] = "shop.settings_of_install"
    project.manage("migrate", "--verbosity", "0")
    project.manage("runworker", "--drain")


def test_the_example_has_no_more_than_twenty_lines_of_code() -> None:
    code = readme_block("# accounts/jobs.py") + readme_block("# accounts/views.py")
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 20


def test_the_example_signs_a_user_up_and_mails_a_welcome(tmp_path: Path, database: dict[str, object]) -> None:
    project = Project(tmp_path, database)
    project.manage("check")
    project.manage("migrate", "--verbosity", "0")

    output = project.manage("shell", stdin=SIGN_UP)
    assert '{"user": 1, "job": 1}' in output
    project.manage("runworker", "--drain")

    [mail] = (tmp_path / "outbox").iterdir()
    assert "To: ada@example.com" in mail.read_text()
    assert "Hello ada, good to have you." in mail.read_text()
    expected = {"task": "accounts.jobs.send_welcome", "status": "completed", "attempts": 1, "result": "ada@example.com"}
    assert str([expected]) in project.manage("shell", stdin=PRINT_JOBS)


def test_the_other_options_that_the_readme_shows_defer_jobs(tmp_path: Path, database: dict[str, object]) -> None:
    project = Project(tmp_path, database)
    project.manage("migrate", "--verbosity", "0")
    code_with_options = next(code for code in python_blocks() if "send_welcome.using(" in code)
    make_user = "from django.contrib.auth import models\nmodels.User.objects.create_user('ada', 'ada@example.com')\n"
    project.manage("shell", stdin=make_user + code_with_options)
    assert project.manage("shell", stdin=PRINT_JOBS).count("accounts.jobs.send_welcome") == 3


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_to_files_of_the_repository_lead_somewhere(page: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b *(?:#|`)", README)) <= targets


# The reference


def table_cells(page: str, heading: str | None = None) -> list[list[str]]:
    """The cells of the tables on a page of the reference, or below one of its headings."""
    text = (REFERENCE / f"{page}.md").read_text()
    if heading is not None:
        text = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
        text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if re.match(r"\| [`\d]", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in_backticks(cells: list[list[str]], column: int = 0) -> set[str]:
    """The texts in backticks in one column."""
    return {literal for row in cells for literal in re.findall(r"`([^`]+)`", row[column])}


def test_settings_page_has_every_key_with_its_default() -> None:
    documented = {row[0].strip("`"): row[2] for row in table_cells("settings") if re.fullmatch("`[A-Z_]+`", row[0])}
    defaults_of_apps = {key.upper(): setting.made_from({}) for key, setting in conf.APP_SETTINGS.items()}
    keys = [field.name for field in fields(conf.Settings) if field.metadata.get("is_key", True)]
    defaults = defaults_of_apps | {key.upper(): getattr(conf.DEFAULTS, key) for key in keys}
    assert set(documented) == set(defaults)
    for key, default in documented.items():
        if key != "RETENTION":
            assert ast.literal_eval(default.strip("`")) == defaults[key]


def test_settings_page_has_the_retention_of_every_finished_status() -> None:
    documented = {
        row[0].strip("`"): row[1] for row in table_cells("settings") if row[0].strip("`") in conf.DEFAULTS.retention
    }
    documented_days = {status: int(text.split()[0]) for status, text in documented.items()}
    retention = {status: conf.DEFAULTS.retention_of(status) for status in conf.DEFAULTS.retention}
    assert documented_days == {status: duration.days for status, duration in retention.items() if duration is not None}


def test_settings_page_has_every_key_of_a_carrier_with_its_default() -> None:
    documented = {row[0].strip('`"').lower(): row[2].strip("`") for row in table_cells("settings", "Carriers")}
    defaults = {field.name: field.default for field in fields(carriers.CarrierSettings) if field.name != "name"}
    assert set(documented) == set(defaults) == {key.lower() for key in carriers.CARRIER_OPTIONS}
    for key, default in documented.items():
        assert (ast.literal_eval(default) == defaults[key]) if default else defaults[key] is MISSING


def test_settings_page_has_every_field_of_a_link_template() -> None:
    documented = {name.strip("{}") for name in names_in_backticks(table_cells("settings", "Links to other systems"))}
    assert documented == {*link_template.FIELDS, "metadata[key]"}


def test_commands_page_has_every_command() -> None:
    page = (REFERENCE / "commands.md").read_text()
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == set(COMMANDS)


def text_about_subcommand(name: str) -> str:
    """The section about a subcommand of `skipqueue` on the page of the commands."""
    page = (REFERENCE / "commands.md").read_text().partition("\n## skipqueue\n")[2]
    return re.split(r"^##+ ", page.partition(f"\n### {name}\n")[2], flags=re.MULTILINE)[0]


def test_commands_page_names_the_subcommands_with_the_option_watch() -> None:
    page = (REFERENCE / "commands.md").read_text().partition("\n## skipqueue\n")[2]
    [listed_commands] = re.findall(r"^\*\*Repeat\.\*\* With `--watch`, (.*?) show", page, re.MULTILINE)
    watchable = {subcommand.name for subcommand in SkipQueue.subcommands if isinstance(subcommand, Watchable)}
    assert set(re.findall(r"`([\w-]+)`", listed_commands)) == watchable


def test_commands_page_has_every_subcommand_in_alphabetical_order() -> None:
    page = (REFERENCE / "commands.md").read_text().partition("\n## skipqueue\n")[2]
    assert re.findall(r"^### ([\w-]+)$", page, re.MULTILINE) == sorted(
        subcommand.name for subcommand in SkipQueue.subcommands
    )


@pytest.mark.parametrize("subcommand", SkipQueue.subcommands, ids=lambda subcommand: subcommand.name)
def test_commands_page_has_every_option_of_a_subcommand(subcommand: Subcommand) -> None:
    if isinstance(subcommand, Alias):
        assert re.search(r"The same as \[`(\w+)`\]", text_about_subcommand(subcommand.name))
        return
    parser = CommandParser(add_help=False)
    subcommand.add_arguments(parser)
    subcommand.add_common_arguments(parser)
    options = {name for action in parser._actions for name in action.option_strings or [str(action.metavar)]}
    options -= {"--database", "--watch"}  # the text above the subcommands documents both options
    parser_of_criteria = CommandParser(add_help=False)
    add_criteria(parser_of_criteria)
    if takes_criteria := set(parser_of_criteria._option_string_actions) <= options:
        options -= set(parser_of_criteria._option_string_actions)
    assert ("[job filters](#skipqueue)" in text_about_subcommand(subcommand.name)) == takes_criteria
    assert ("[verb options](#verbs)" in text_about_subcommand(subcommand.name)) == isinstance(subcommand, ChangeJobs)
    if isinstance(subcommand, ChangeJobs):
        options -= options_of_verbs()
    documented = options_in_list(text_about_subcommand(subcommand.name))
    if isinstance(subcommand, Watchable):  # the text above the subcommands says what these subcommands print
        documented.add("--json")
    assert documented == options


def options_in_list(text: str) -> set[str]:
    """The options that stand at the beginnings of the items of a list."""
    return set(re.findall("`(.+?)`", " ".join(re.findall(r"^- ((?:`[^`]+`(?:, )?)+)", text, re.MULTILINE))))


def options_of_verbs() -> set[str]:
    """The options that the page of the commands lists once for all verbs: subcommands that change jobs."""
    page = (REFERENCE / "commands.md").read_text()
    return options_in_list(page.partition("**Verbs**")[2].partition("**Repeat.**")[0])


def test_commands_page_has_the_options_that_all_verbs_have() -> None:
    options: list[set[str]] = []
    for verb in (
        subcommand
        for subcommand in SkipQueue.subcommands
        if isinstance(subcommand, ChangeJobs) and subcommand.name != "delete"
    ):
        parser = CommandParser(add_help=False)
        verb.add_arguments(parser)
        options.append({name for action in parser._actions for name in action.option_strings or [str(action.metavar)]})
    parser_of_criteria = CommandParser(add_help=False)
    add_criteria(parser_of_criteria)
    assert options_of_verbs() == set.intersection(*options) - set(parser_of_criteria._option_string_actions)


def test_commands_page_has_every_option_that_selects_jobs() -> None:
    parser = CommandParser(add_help=False)
    add_criteria(parser)
    page = (REFERENCE / "commands.md").read_text()
    options = options_in_list(page.partition("**Job filters.**")[2].partition("**Durations**")[0])
    assert options == set(parser._option_string_actions)


def test_commands_page_has_every_exit_code_of_skipqueue() -> None:
    documented_codes = [int(row[0]) for row in table_cells("commands", "skipqueue") if row[0].isdecimal()]
    assert documented_codes == sorted({int(code) for code in Exit})


OPTIONS_WITHOUT_VARIABLE = {"--no-reload", "--reclaim", "--yes", "--show-topology"}
"""Options without an environment variable, of commands whose other options have one."""


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "skipqueue"])
def test_commands_page_has_every_option_and_the_rule_for_environment_variables(command: str) -> None:
    parser = CommandParser(add_help=False)
    load_command_class(COMMANDS[command], command).add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert names_in_backticks(table_cells("commands", command)) == options
    help_texts = " ".join(str(action.help) for action in parser._actions)
    variables = {
        option[2:].upper().replace("-", "_") for option in options - OPTIONS_WITHOUT_VARIABLE if option.startswith("--")
    }
    assert set(re.findall(r"SKIPQUEUE_(\w+)", help_texts)) in (variables, set())


def test_signals_page_has_every_signal() -> None:
    assert names_in_backticks(table_cells("signals")) == {
        name for name, value in vars(signals).items() if isinstance(value, Signal)
    }


def test_checks_page_has_every_check() -> None:
    code = "".join(path.read_text() for path in (ROOT / "django_skipqueue").rglob("*.py"))
    assert names_in_backticks([row[:1] for row in table_cells("checks")]) == set(
        re.findall(r'id="(skipqueue\.\w+)"', code)
    )


def test_statuses_page_has_every_status() -> None:
    statuses = {row[0].strip("`") for row in table_cells("statuses") if "→" not in row[0]}
    assert statuses == set(Status.values)


def test_exceptions_page_has_every_exception() -> None:
    exceptions_of_the_app = {name for name, value in vars(exceptions).items() if isinstance(value, type)}
    outcome_classes = [value for value in vars(outcomes).values() if isinstance(value, type)]
    exceptions_of_tasks = {
        outcome.__name__ for outcome in outcome_classes if issubclass(outcome, Exception)
    } - exceptions_of_the_app
    assert names_in_backticks(table_cells("exceptions", "Raised by this app")) == exceptions_of_the_app
    assert names_in_backticks(table_cells("exceptions", "Raised by tasks")) == exceptions_of_tasks


def test_tasks_page_has_every_option_of_the_decorator() -> None:
    assert names_in_backticks(table_cells("tasks")) == {*TaskOptions.__annotations__, "takes_context"}
    decorator_only = {"concurrency", "sequence", "fair_by", "rate", "shard_by", "retention"}
    assert {*UsingOptions.__annotations__, *decorator_only} == CORE_OPTIONS.union(*NAMES_OF_OPTIONS.values())


@pytest.mark.parametrize(
    "table",
    [
        "skipqueue_job",
        "skipqueue_worker",
        "skipqueue_celery_worker",
        "skipqueue_worker_request",
        "skipqueue_queue",
        "skipqueue_rate",
        "skipqueue_schedule",
        "skipqueue_incident",
        "skipqueue_rollup",
        "skipqueue_failure_rollup",
    ],
)
def test_tables_page_has_every_column(table: str) -> None:
    [model] = [candidate for candidate in apps.get_models() if candidate._meta.db_table == table]
    documented = names_in_backticks(table_cells("tables", table))
    assert documented == {field.column for field in model._meta.concrete_fields}


def test_tables_page_has_every_index() -> None:
    documented = {row[0].strip("`") for row in table_cells("tables", "Indexes of skipqueue_job")}
    unique = {constraint.name for constraint in Job._meta.constraints if constraint.name == "skipqueue_job_unique"}
    assert documented == {index.name for index in Job._meta.indexes} | unique


def test_the_how_to_for_djangos_tasks_has_every_option_of_the_backend() -> None:
    from django_skipqueue.integrations.django_tasks.mapping import OPTION_NAMES

    page = (ROOT / "docs" / "how-to" / "django-tasks.md").read_text().split("## Options")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == set(OPTION_NAMES)
