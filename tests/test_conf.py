"""The setting `SKIPQUEUE` has typed values, is read when it is used, and is validated."""

import math
import re
import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import load_command_class

from django_skipqueue import conf


def test_without_the_setting_every_value_is_the_documented_default(settings: Any) -> None:
    del settings.SKIPQUEUE
    assert list(conf.problems()) == []
    assert conf.settings.database == "default"
    assert conf.settings.max_attempts == 10
    assert conf.settings.worker_timeout == 60
    assert conf.settings.shutdown_timeout == 30
    assert conf.settings.unknown_task_grace == 3600
    assert conf.settings.retention_of("completed") == timedelta(days=1)
    assert conf.settings.retention_of("discarded") == timedelta(days=7)
    assert conf.settings.retention_of("failed") == timedelta(days=30)


def test_a_changed_setting_applies_at_once(settings: Any) -> None:
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": 5}
    assert conf.settings.worker_timeout == 5
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": 7}
    assert conf.settings.worker_timeout == 7


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (None, None),
        (0, timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.5, timedelta(milliseconds=500)),
        (timedelta(days=2), timedelta(days=2)),
    ],
)
def test_a_retention_is_a_timedelta_seconds_or_none(settings: Any, retention: Any, expected: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": retention}}
    assert conf.settings.retention_of("failed") == expected
    assert conf.settings.retention_of("completed") == timedelta(days=1), "a status that is not named keeps its default"


def test_the_queue_has_one_database_or_several(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert conf.settings.queue_databases == ("other",)
    settings.SKIPQUEUE = {"DATABASES": ["other", "default"], "RETIRING": ["old"]}
    assert conf.settings.database == "other", "the first"
    assert list(conf.settings.queue_databases) == ["other", "default"]
    assert list(conf.settings.served_databases) == ["other", "default", "old"]
    settings.SKIPQUEUE = {"DATABASE": "default", "DATABASES": ["other", "default"]}
    assert conf.settings.database == "default"


# By the name of the case: a wrong value of SKIPQUEUE, and the beginning of the error message.
WRONG_SETTINGS: dict[str, tuple[Any, str]] = {
    "not a dict": (["WORKER_TIMEOUT"], "SKIPQUEUE must be a dict, not list."),
    "none": (None, "SKIPQUEUE must be a dict, not NoneType."),
    "mistyped": ({"WORKER_TIMOUT": 3}, "SKIPQUEUE has no key 'WORKER_TIMOUT'. Did you mean 'WORKER_TIMEOUT'?"),
    "lower case": ({"worker_timeout": 3}, "SKIPQUEUE has no key 'worker_timeout'. Did you mean 'WORKER_TIMEOUT'?"),
    "mixed case": ({"Worker_Timeout": 3}, "SKIPQUEUE has no key 'Worker_Timeout'. Did you mean 'WORKER_TIMEOUT'?"),
    "nothing like it": (
        {"XYZ": 3},
        "SKIPQUEUE has no key 'XYZ'. It knows ALERTS_WEBHOOK, ARCHIVE, CAPTURE_LOGS, CARRIERS, DATABASE, DATABASES, D",
    ),
    "the alerts of an older version": (
        {"ALERTS": {}},
        "SKIPQUEUE has no key 'ALERTS'. The rules of the doctor raise alerts. RULES has their thresholds, and ALERTS_W",
    ),
    "number as key": ({3: 3}, "SKIPQUEUE has no key 3."),
    "text for a number": (
        {"WORKER_TIMEOUT": "60"},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not '60'.",
    ),
    "a text for names": ({"REDACT": "card"}, "SKIPQUEUE['REDACT'] must be a tuple of names, not 'card'."),
    "no logging level": (
        {"CAPTURE_LOGS": []},
        "SKIPQUEUE['CAPTURE_LOGS'] must be None or the name of a logging level, such as 'INFO' or 'WARNING', not []",
    ),
    "no name": ({"REDACT": ["42"]}, "SKIPQUEUE['REDACT'] must be a tuple of names, not ['42']."),
    "none for a number": (
        {"WORKER_TIMEOUT": None},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not None.",
    ),
    "zero": (
        {"POLL_INTERVAL": 0},
        "SKIPQUEUE['POLL_INTERVAL'] must be a number of seconds from 0.01 to 1,209,600, not 0.",
    ),
    "negative": (
        {"WORKER_TIMEOUT": -1.5},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not -1.5.",
    ),
    "nan": (
        {"WORKER_TIMEOUT": math.nan},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not nan.",
    ),
    "bool for a number": (
        {"WORKER_TIMEOUT": True},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not True.",
    ),
    "float for a whole number": (
        {"MAX_ATTEMPTS": 2.5},
        "SKIPQUEUE['MAX_ATTEMPTS'] must be an integer from 1 to 32,767",
    ),
    "bool for a whole number": (
        {"MAX_ATTEMPTS": True},
        "SKIPQUEUE['MAX_ATTEMPTS'] must be an integer from 1 to 32,767",
    ),
    "no attempts": ({"MAX_ATTEMPTS": 0}, "SKIPQUEUE['MAX_ATTEMPTS'] must be an integer from 1 to 32,767"),
    "empty text": ({"DATABASE": ""}, "SKIPQUEUE['DATABASE'] must be a str, not ''."),
    "a text for aliases": ({"DATABASES": "default"}, "SKIPQUEUE['DATABASES'] must be a tuple of aliases of DATA"),
    "an empty alias": ({"RETIRING": ("",)}, "SKIPQUEUE['RETIRING'] must be a tuple of aliases of DATABASES"),
    "an alias twice": ({"DATABASES": ("other", "other")}, "SKIPQUEUE['DATABASES'] lists an alias twice"),
    "a database that is not listed": (
        {"DATABASE": "default", "DATABASES": ("other",)},
        "SKIPQUEUE['DATABASE'] is 'default', which SKIPQUEUE['DATABASES'] does not list.",
    ),
    "retiring, and getting jobs": (
        {"DATABASES": ("default", "other"), "RETIRING": ("other",)},
        "SKIPQUEUE['RETIRING'] lists 'other', which still gets new jobs. Remove it from one of the two settings.",
    ),
    "retiring the only one": ({"RETIRING": ("default",)}, "SKIPQUEUE['RETIRING'] lists 'default', which still gets"),
    "no such placement": (
        {"DATABASES": ("default",), "PLACEMENT": "random"},
        "SKIPQUEUE['PLACEMENT'] must be None, 'spread', 'router', or a function or its path, not 'random'.",
    ),
    "a placement of nothing": (
        {"PLACEMENT": "spread"},
        "SKIPQUEUE['PLACEMENT'] chooses among SKIPQUEUE['DATABASES'], but that setting is missing.",
    ),
    "number for a text": ({"DATABASE": 1}, "SKIPQUEUE['DATABASE'] must be a str, not 1."),
    "retention not a dict": ({"RETENTION": 5}, "SKIPQUEUE['RETENTION'] must be a dict of finished statuses, not 5."),
    "retention of nothing": (
        {"RETENTION": {"complete": 5}},
        "SKIPQUEUE['RETENTION'] has no status 'complete': the finished ones are completed, discarded, failed. "
        "Did you mean 'completed'?",
    ),
    "retention of the unfinished": (
        {"RETENTION": {"queued": 5}},
        "SKIPQUEUE['RETENTION'] has no status 'queued': the finished ones are completed, discarded, failed.",
    ),
    "retention negative": ({"RETENTION": {"failed": -1}}, "SKIPQUEUE['RETENTION']['failed'] must be a timedelta"),
    "retention negative delta": (
        {"RETENTION": {"failed": timedelta(-1)}},
        "SKIPQUEUE['RETENTION']['failed'] must be a timedelta",
    ),
    "retention bool": ({"RETENTION": {"failed": False}}, "SKIPQUEUE['RETENTION']['failed'] must be a timedelta"),
    "retention text": ({"RETENTION": {"failed": "1d"}}, "SKIPQUEUE['RETENTION']['failed'] must be a timedelta"),
    "retention nan": ({"RETENTION": {"failed": math.nan}}, "SKIPQUEUE['RETENTION']['failed'] must be a timedelta"),
    "retention for ever, spelled inf": (
        {"RETENTION": {"failed": math.inf}},
        "SKIPQUEUE['RETENTION']['failed'] must be a timedelta",
    ),
    "retention too long": (
        {"RETENTION": {"failed": 1e15}},
        "SKIPQUEUE['RETENTION']['failed'] must be a timedelta, seconds (0 to 3,153,600,000) or None",
    ),
    "archive zero": ({"ARCHIVE": 0}, "SKIPQUEUE['ARCHIVE'] must be a timedelta or seconds (above 0, at most"),
    "archive no time": ({"ARCHIVE": timedelta(0)}, "SKIPQUEUE['ARCHIVE'] must be a timedelta or seconds"),
    "archive true": (
        {"ARCHIVE": True},
        "SKIPQUEUE['ARCHIVE'] must be a timedelta or seconds (above 0, at most 3,153,600,000), None to keep archived "
        "jobs for ever, or False for no archive, not True.",
    ),
    "archive text": ({"ARCHIVE": "1y"}, "SKIPQUEUE['ARCHIVE'] must be a timedelta or seconds"),
    "inf for a number": (
        {"WORKER_TIMEOUT": math.inf},
        "SKIPQUEUE['WORKER_TIMEOUT'] must be a number of seconds from 1 to 1,209,600, not inf.",
    ),
    "more attempts than fit": (
        {"MAX_ATTEMPTS": 40_000},
        "SKIPQUEUE['MAX_ATTEMPTS'] must be an integer from 1 to 32,767",
    ),
    "a longer wait than there is": (
        {"SHUTDOWN_TIMEOUT": 1_209_601},
        "SKIPQUEUE['SHUTDOWN_TIMEOUT'] must be a number of seconds from 0 to 1,209,600, not 1209601.",
    ),
    "links are no dict": ({"LINKS": "https://x"}, "SKIPQUEUE['LINKS'] must be a dict of labels and addresses, not 'ht"),
    "a link without a label": ({"LINKS": {" ": "https://x"}}, "SKIPQUEUE['LINKS'] has the label ' '"),
    "a link to a script": (
        {"LINKS": {"Logs": "javascript:alert({job_id})"}},
        "SKIPQUEUE['LINKS']['Logs'] must be an address that begins with http:// or https:// and a host without fields",
    ),
    "a link with an unknown field": (
        {"LINKS": {"Logs": "https://x/{id}"}},
        "SKIPQUEUE['LINKS']['Logs'] must be an address whose fields are of job_id, task, ",
    ),
    "a long deployment": ({"DEPLOYMENT": "x" * 201}, "SKIPQUEUE['DEPLOYMENT'] must be None or a str of at most 200"),
    "a deployment that no column takes": ({"DEPLOYMENT": "a\0"}, "SKIPQUEUE['DEPLOYMENT'] must be None or a str of at"),
    "a number for a deployment": ({"DEPLOYMENT": 4}, "SKIPQUEUE['DEPLOYMENT'] must be None or a str of at most 200"),
    "a token to be guessed": (
        {"METRICS_TOKEN": "secret"},
        "SKIPQUEUE['METRICS_TOKEN'] must be None or a str of at least 16 characters: ASCII without spaces",
    ),
    "a token that fits no header": ({"METRICS_TOKEN": "a" * 20 + "\n"}, "SKIPQUEUE['METRICS_TOKEN'] must be None or"),
    "arguments to search that are no dict": ({"SEARCHABLE": ["id"]}, "SKIPQUEUE['SEARCHABLE'] must be a dict of tasks"),
    "an argument to search that is no list": (
        {"SEARCHABLE": {"shop.jobs.send": "payment_id"}},
        "SKIPQUEUE['SEARCHABLE']['shop.jobs.send'] must be a list of names of arguments, not 'payment_id'.",
    ),
    "an argument to search that is no name": (
        {"SEARCHABLE": {"shop.jobs.send": ["order.id"]}},
        "SKIPQUEUE['SEARCHABLE']['shop.jobs.send'] must be a list of names of arguments, not ['order.id'].",
    ),
    "no argument to search": (
        {"SEARCHABLE": {"shop.jobs.send": []}},
        "SKIPQUEUE['SEARCHABLE']['shop.jobs.send'] must be a list of names of arguments, not [].",
    ),
    "an argument to search twice": (
        {"SEARCHABLE": {"shop.jobs.send": ["id", "id"]}},
        "SKIPQUEUE['SEARCHABLE']['shop.jobs.send'] names an argument twice",
    ),
    "a task to search that is no name": (
        {"SEARCHABLE": {5: ["id"]}},
        "SKIPQUEUE['SEARCHABLE'] must have names of tasks",
    ),
    "no time at all": (
        {"UNKNOWN_TASK_GRACE": 0},
        "SKIPQUEUE['UNKNOWN_TASK_GRACE'] must be a number of seconds above 0, at most 3,153,600,000, not 0.",
    ),
}


def test_a_wrong_setting_raises_one_clear_sentence_and_is_never_returned(
    settings: Any, subtests: pytest.Subtests
) -> None:
    for name, (wrong_setting, expected) in WRONG_SETTINGS.items():
        with subtests.test(name):
            settings.SKIPQUEUE = wrong_setting
            (problem,) = conf.problems()
            assert problem.startswith(expected)
            with pytest.raises(ImproperlyConfigured) as error_info:
                _ = conf.settings.worker_timeout
            assert problem in str(error_info.value)


def test_the_error_for_a_wrong_token_does_not_show_the_token(settings: Any) -> None:
    settings.SKIPQUEUE = {"METRICS_TOKEN": "hunter2"}
    (problem,) = conf.problems()
    assert "hunter2" not in problem


def test_all_problems_are_reported_together(settings: Any) -> None:
    settings.SKIPQUEUE = {"WORKER_TIMOUT": 1, "DATABASE": 2, "RETENTION": {"failed": -1, "lost": 2}}
    assert len(list(conf.problems())) == 4


def test_a_corrected_setting_works_again(settings: Any) -> None:
    settings.SKIPQUEUE = {"WORKER_TIMOUT": 1}
    with pytest.raises(ImproperlyConfigured):
        _ = conf.settings.worker_timeout
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": 1}
    assert conf.settings.worker_timeout == 1


def test_importing_the_module_reads_no_setting() -> None:
    script = "import django_skipqueue.conf; from django.conf import settings; assert not settings.configured"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_error_for_a_runworker_option_in_the_setting_names_the_option(settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_JOBS": 4}
    (problem,) = conf.problems()
    assert problem.startswith("SKIPQUEUE has no key 'MAX_JOBS'. It is an option of runworker: --max-jobs, or ")
    assert problem.endswith("SKIPQUEUE_MAX_JOBS in its environment.")


def test_every_runworker_option_with_a_variable_is_a_setting_or_a_known_option() -> None:
    parser = load_command_class("django_skipqueue", "runworker").create_parser("manage.py", "runworker")
    variables = {name for action in parser._actions for name in re.findall(r"\[SKIPQUEUE_(\w+)\]", str(action.help))}
    assert variables - {field.name.upper() for field in fields(conf.Settings)} == conf.OPTIONS_OF_RUNWORKER


def test_the_error_for_an_unknown_status_lists_the_finished_statuses_once(settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"queued": 1}}
    (problem,) = conf.problems()
    assert problem.count("completed") == 1
