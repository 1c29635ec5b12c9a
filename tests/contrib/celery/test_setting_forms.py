"""The setting `CARRIERS`, which names the queues whose jobs Celery's workers run instead of this package's workers."""

from typing import Any

import pytest

from django_skipqueue import checks, conf
from django_skipqueue.contrib.celery.settings import CarrierSettings, carriers

REQUIRED_OPTIONS: dict[str, Any] = {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf"}}
VIDEO_QUEUE: dict[str, Any] = {"QUEUES": {"video": "video"}}


def settings_with(**changes: Any) -> dict[str, Any]:
    return {"CARRIERS": {"celery": REQUIRED_OPTIONS | changes}}


def settings_without(key: str) -> dict[str, Any]:
    return {"CARRIERS": {"celery": {name: value for name, value in REQUIRED_OPTIONS.items() if name != key}}}


def test_without_the_setting_no_queue_is_carried(settings: Any) -> None:
    assert carriers() == {}
    assert conf.settings.external_queues == {}


def test_a_carrier_has_defaults(settings: Any) -> None:
    settings.SKIPQUEUE = settings_with()
    assert carriers() == {
        "celery": CarrierSettings(
            name="celery",
            app="shop.celery.app",
            queues={"pdf": "pdf"},
            window=2_000,
            wait=600,
            max_message_size=16_777_216,
            declare=True,
        )
    }


def test_every_option_of_a_carrier_is_taken(settings: Any) -> None:
    queues = {"pdf": "pdf", "import": "slow"}
    settings.SKIPQUEUE = settings_with(QUEUES=queues, WINDOW=5, WAIT=2.5, MAX_MESSAGE_SIZE=65_536, DECLARE=False)
    assert carriers()["celery"] == CarrierSettings(
        name="celery",
        app="shop.celery.app",
        queues=queues,
        window=5,
        wait=2.5,
        max_message_size=65_536,
        declare=False,
    )


def test_the_queues_of_all_carriers_are_external(settings: Any) -> None:
    settings.SKIPQUEUE = {
        "CARRIERS": {"a": REQUIRED_OPTIONS | {"QUEUES": {"pdf": "x", "mail": "x"}}, "b": REQUIRED_OPTIONS | VIDEO_QUEUE}
    }
    assert conf.settings.external_queues == {"pdf": "a", "mail": "a", "video": "b"}


CELERY_SETTING = "SKIPQUEUE['CARRIERS']['celery']"
# For each case: the setting SKIPQUEUE, and how the reported problem begins.
WRONG_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no dict": ({"CARRIERS": ["celery"]}, "SKIPQUEUE['CARRIERS'] must be a dict of carriers by name, not ['celery']."),
    "no name": (
        {"CARRIERS": {"a b": REQUIRED_OPTIONS}},
        "SKIPQUEUE['CARRIERS'] has the key 'a b'; a key is the name of a",
    ),
    "a number for a name": (
        {"CARRIERS": {1: REQUIRED_OPTIONS}},
        "SKIPQUEUE['CARRIERS'] has the key 1; a key is the name of a",
    ),
    "no options": (
        {"CARRIERS": {"celery": "shop.celery.app"}},
        f"{CELERY_SETTING} must be a dict, not 'shop.celery.app'.",
    ),
    "mistyped": (settings_with(WINDWO=3), f"{CELERY_SETTING} has no key 'WINDWO'. Did you mean 'WINDOW'?"),
    "lower case": (settings_with(window=3), f"{CELERY_SETTING} has no key 'window'. Did you mean 'WINDOW'?"),
    "nothing like it": (
        settings_with(XYZ=3),
        f"{CELERY_SETTING} has no key 'XYZ'. It knows APP, DECLARE, MAX_MESSAGE_SIZE,",
    ),
    "without an app": (
        settings_without("APP"),
        f"{CELERY_SETTING} lacks the key 'APP': the path of the project's Celery app, such as",
    ),
    "without queues": (
        settings_without("QUEUES"),
        f"{CELERY_SETTING} lacks the key 'QUEUES': a dict of Celery's queues by the names of",
    ),
    "no path": (
        settings_with(APP="celery"),
        f"{CELERY_SETTING}['APP'] must be the path of the project's Celery app, such as 'shop.c",
    ),
    "a path of Celery's own": (
        settings_with(APP="shop.celery:app"),
        f"{CELERY_SETTING}['APP'] must be the path of the project's Cel",
    ),
    "an app itself": (
        settings_with(APP=object),
        f"{CELERY_SETTING}['APP'] must be the path of the project's Celery app",
    ),
    "no queues": (
        settings_with(QUEUES={}),
        f"{CELERY_SETTING}['QUEUES'] must be a dict of Celery's queues by the names of the",
    ),
    "a list of queues": (
        settings_with(QUEUES=["pdf"]),
        f"{CELERY_SETTING}['QUEUES'] must be a dict of Celery's queues by the names",
    ),
    "an empty queue": (
        settings_with(QUEUES={"": "pdf"}),
        f"{CELERY_SETTING}['QUEUES'] has the key ''; a key is the name of a queue.",
    ),
    "two queues in one": (
        settings_with(QUEUES={"a,b": "pdf"}),
        f"{CELERY_SETTING}['QUEUES'] has the key 'a,b'; a key is the name",
    ),
    "no queue of Celery": (
        settings_with(QUEUES={"pdf": ""}),
        f"{CELERY_SETTING}['QUEUES']['pdf'] must be the name of a queue of Celery, of at most 255 bytes, not ''.",
    ),
    "a long queue of Celery": (
        settings_with(QUEUES={"pdf": "ä" * 128}),
        f"{CELERY_SETTING}['QUEUES']['pdf'] must be the name of a",
    ),
    "a queue of RabbitMQ": (
        settings_with(QUEUES={"pdf": "amq.x"}),
        f"{CELERY_SETTING}['QUEUES']['pdf'] must not begin with 'amq.' or 'skipqueue.': 'amq.x'.",
    ),
    "a queue of the relay": (
        settings_with(QUEUES={"pdf": "skipqueue.back.default"}),
        f"{CELERY_SETTING}['QUEUES']['pdf'] must not begin with 'amq.' or 'skipqueue.': 'skipqueue.back.default'.",
    ),
    "no window": (settings_with(WINDOW=0), f"{CELERY_SETTING}['WINDOW'] must be an integer from 1 to 100,000, not 0."),
    "too large a window": (
        settings_with(WINDOW=100_001),
        f"{CELERY_SETTING}['WINDOW'] must be an integer from 1 to 100,000, not 10",
    ),
    "half a job": (
        settings_with(WINDOW=1.5),
        f"{CELERY_SETTING}['WINDOW'] must be an integer from 1 to 100,000, not 1.5.",
    ),
    "no wait": (
        settings_with(WAIT=0),
        f"{CELERY_SETTING}['WAIT'] must be a number of seconds from 1 to 1,209,600, not 0.",
    ),
    "too long a wait": (
        settings_with(WAIT=1_209_601),
        f"{CELERY_SETTING}['WAIT'] must be a number of seconds from 1 to 1,209,600",
    ),
    "too small a message": (
        settings_with(MAX_MESSAGE_SIZE=65_535),
        f"{CELERY_SETTING}['MAX_MESSAGE_SIZE'] must be an integer from 65,536 to 536,870,912, not 65535.",
    ),
    "a size with a unit": (
        settings_with(MAX_MESSAGE_SIZE="16 MiB"),
        f"{CELERY_SETTING}['MAX_MESSAGE_SIZE'] must be an integer from",
    ),
    "no choice": (settings_with(DECLARE="no"), f"{CELERY_SETTING}['DECLARE'] must be True or False, not 'no'."),
    "carried twice": (
        {"CARRIERS": {"a": REQUIRED_OPTIONS, "b": REQUIRED_OPTIONS}},
        "SKIPQUEUE['CARRIERS'] lists the queue 'pdf' in 2 carriers, but only one carrier may run it.",
    ),
}


def test_each_wrong_setting_is_reported_in_one_sentence(settings: Any, subtests: pytest.Subtests) -> None:
    for name, (value, expected_problem) in WRONG_SETTINGS.items():
        with subtests.test(name):
            settings.SKIPQUEUE = value
            (problem,) = conf.problems()
            assert problem.startswith(expected_problem)


def test_without_the_app_of_celery_the_problem_names_the_app(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(conf.APP_SETTINGS, "carriers")
    settings.SKIPQUEUE = settings_with()
    (problem,) = conf.problems()
    assert problem.startswith(
        "SKIPQUEUE has no key 'CARRIERS'. Add 'django_skipqueue.contrib.celery' to INSTALLED_APPS"
    )
    (reported,) = checks.check_settings()
    assert (reported.id, reported.msg) == ("skipqueue.E001", problem)
