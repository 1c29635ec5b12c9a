"""The setting `ALERTS`: limits by rule and queue."""

from typing import Any

import pytest

from django_skipqueue import conf
from django_skipqueue.parts.alerts.settings import Limit, limits


def test_a_number_is_the_limit_of_all_queues() -> None:
    assert limits({"oldest_waiting": 300, "recoveries": 5, "webhook": "https://x"}) == [
        Limit("oldest_waiting", "", 300),
        Limit("recoveries", "", 5),
    ]


def test_a_dict_gives_limits_to_queues_and_to_all_others() -> None:
    given = {"oldest_waiting": {"*": 300, "mail": 60, "nightly": None}}
    assert limits(given) == [
        Limit("oldest_waiting", "", 300, ("mail", "nightly")),
        Limit("oldest_waiting", "mail", 60),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "SKIPQUEUE['ALERTS'] must be a dict of rules and limits, not 5."),
        ({"oldest": 5}, "SKIPQUEUE['ALERTS'] has no rule 'oldest'. It knows oldest_waiting, no_worker, failed_share, "),
        ({"failed_share": 20}, "SKIPQUEUE['ALERTS']['failed_share'] must be a share from 0.001 to 1, or a dict of"),
        ({"no_worker": 1}, "SKIPQUEUE['ALERTS']['no_worker'] must be a number of seconds from 10 to 31,536,000"),
        (
            {"schedule_missed": {"mail": 60}},
            "SKIPQUEUE['ALERTS']['schedule_missed'] must be a number of seconds from 10",
        ),
        ({"sequence_halted": 5}, "SKIPQUEUE['ALERTS']['sequence_halted'] must be a number of seconds from 10"),
        ({"recoveries": True}, "SKIPQUEUE['ALERTS']['recoveries'] must be a number of jobs from 1 to 1"),
        ({"no_worker": {"mail": "60"}}, "SKIPQUEUE['ALERTS']['no_worker']['mail'] must be a number of seconds from 10"),
        ({"no_worker": {"": 60}}, "SKIPQUEUE['ALERTS']['no_worker'] has the key ''; a key is the name of a queue"),
        ({"webhook": "ftp://x/secret"}, "SKIPQUEUE['ALERTS']['webhook'] must be an address that begins with http://"),
        ({"webhook": "file:///etc/passwd"}, "SKIPQUEUE['ALERTS']['webhook'] must be an address"),
        ({"webhook": "https://user:secret@x/"}, "SKIPQUEUE['ALERTS']['webhook'] must be an address"),
        ({"webhook": "https://x/a secret"}, "SKIPQUEUE['ALERTS']['webhook'] must be an address"),
    ],
)
def test_a_mistake_is_one_sentence(settings: Any, given: Any, said: str) -> None:
    settings.SKIPQUEUE = {"ALERTS": given}
    (problem,) = conf.problems()
    assert problem.startswith(said)
    assert "secret" not in problem


def test_a_valid_setting_has_no_problem(settings: Any) -> None:
    settings.SKIPQUEUE = {
        "ALERTS": {
            "oldest_waiting": {"*": 300.5, "mail": 60, "nightly": None},
            "failed_share": 0.2,
            "webhook": "https://hooks.example.com:8443/services/T0?x=1",
        }
    }
    assert list(conf.problems()) == []
