"""The setting `CARRIERS`: which queues an engine outside of PostgreSQL runs."""

from typing import Any

import pytest

from django_skipqueue import checks, conf
from django_skipqueue.contrib.celery.settings import CarrierSettings, carriers

LEAST: dict[str, Any] = {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf"}}


def carrier(**changes: Any) -> dict[str, Any]:
    return {"CARRIERS": {"celery": LEAST | changes}}


def without(key: str) -> dict[str, Any]:
    return {"CARRIERS": {"celery": {name: value for name, value in LEAST.items() if name != key}}}


def test_without_the_setting_no_queue_is_carried(settings: Any) -> None:
    assert carriers() == {}
    assert conf.settings.external_queues == {}


def test_a_carrier_has_defaults(settings: Any) -> None:
    settings.SKIPQUEUE = carrier()
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
    settings.SKIPQUEUE = carrier(QUEUES=queues, WINDOW=5, WAIT=2.5, MAX_MESSAGE_SIZE=65_536, DECLARE=False)
    assert carriers()["celery"] == CarrierSettings(
        name="celery",
        app="shop.celery.app",
        queues=queues,
        window=5,
        wait=2.5,
        max_message_size=65_536,
        declare=False,
    )


def test_the_carried_queues_are_those_of_all_carriers(settings: Any) -> None:
    settings.SKIPQUEUE = {"CARRIERS": {"a": LEAST | {"QUEUES": {"pdf": "x", "mail": "x"}}, "b": LEAST | OTHER_QUEUE}}
    assert conf.settings.external_queues == {"pdf": "a", "mail": "a", "video": "b"}


OTHER_QUEUE: dict[str, Any] = {"QUEUES": {"video": "video"}}

PLACE = "SKIPQUEUE['CARRIERS']['celery']"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no dict": ({"CARRIERS": ["celery"]}, "SKIPQUEUE['CARRIERS'] must be a dict of carriers by name, not ['celery']."),
    "no name": ({"CARRIERS": {"a b": LEAST}}, "SKIPQUEUE['CARRIERS'] has the key 'a b'; a key is the name of a"),
    "a number for a name": ({"CARRIERS": {1: LEAST}}, "SKIPQUEUE['CARRIERS'] has the key 1; a key is the name of a"),
    "no options": ({"CARRIERS": {"celery": "shop.celery.app"}}, f"{PLACE} must be a dict, not 'shop.celery.app'."),
    "mistyped": (carrier(WINDWO=3), f"{PLACE} has no key 'WINDWO'. Did you mean 'WINDOW'?"),
    "lower case": (carrier(window=3), f"{PLACE} has no key 'window'. Did you mean 'WINDOW'?"),
    "nothing like it": (carrier(XYZ=3), f"{PLACE} has no key 'XYZ'. It knows APP, DECLARE, MAX_MESSAGE_SIZE,"),
    "without an app": (without("APP"), f"{PLACE} lacks the key 'APP': the path of the project's Celery app, such as"),
    "without queues": (without("QUEUES"), f"{PLACE} lacks the key 'QUEUES': a dict of Celery's queues by the names of"),
    "no path": (carrier(APP="celery"), f"{PLACE}['APP'] must be the path of the project's Celery app, such as 'shop.c"),
    "a path of Celery's own": (carrier(APP="shop.celery:app"), f"{PLACE}['APP'] must be the path of the project's Cel"),
    "an app itself": (carrier(APP=object), f"{PLACE}['APP'] must be the path of the project's Celery app"),
    "no queues": (carrier(QUEUES={}), f"{PLACE}['QUEUES'] must be a dict of Celery's queues by the names of the"),
    "a list of queues": (carrier(QUEUES=["pdf"]), f"{PLACE}['QUEUES'] must be a dict of Celery's queues by the names"),
    "an empty queue": (carrier(QUEUES={"": "pdf"}), f"{PLACE}['QUEUES'] has the key ''; a key is the name of a queue."),
    "two queues in one": (carrier(QUEUES={"a,b": "pdf"}), f"{PLACE}['QUEUES'] has the key 'a,b'; a key is the name"),
    "no queue of Celery": (
        carrier(QUEUES={"pdf": ""}),
        f"{PLACE}['QUEUES']['pdf'] must be the name of a queue of Celery, of at most 255 bytes, not ''.",
    ),
    "a long queue of Celery": (carrier(QUEUES={"pdf": "ä" * 128}), f"{PLACE}['QUEUES']['pdf'] must be the name of a"),
    "a queue of RabbitMQ": (
        carrier(QUEUES={"pdf": "amq.x"}),
        f"{PLACE}['QUEUES']['pdf'] must not begin with 'amq.' or 'skipqueue.': 'amq.x'.",
    ),
    "a queue of the relay": (
        carrier(QUEUES={"pdf": "skipqueue.back.default"}),
        f"{PLACE}['QUEUES']['pdf'] must not begin with 'amq.' or 'skipqueue.': 'skipqueue.back.default'.",
    ),
    "no window": (carrier(WINDOW=0), f"{PLACE}['WINDOW'] must be an integer from 1 to 100,000, not 0."),
    "too large a window": (carrier(WINDOW=100_001), f"{PLACE}['WINDOW'] must be an integer from 1 to 100,000, not 10"),
    "half a job": (carrier(WINDOW=1.5), f"{PLACE}['WINDOW'] must be an integer from 1 to 100,000, not 1.5."),
    "no wait": (carrier(WAIT=0), f"{PLACE}['WAIT'] must be a number of seconds from 1 to 1,209,600, not 0."),
    "too long a wait": (carrier(WAIT=1_209_601), f"{PLACE}['WAIT'] must be a number of seconds from 1 to 1,209,600"),
    "too small a message": (
        carrier(MAX_MESSAGE_SIZE=65_535),
        f"{PLACE}['MAX_MESSAGE_SIZE'] must be an integer from 65,536 to 536,870,912, not 65535.",
    ),
    "a size with a unit": (carrier(MAX_MESSAGE_SIZE="16 MiB"), f"{PLACE}['MAX_MESSAGE_SIZE'] must be an integer from"),
    "no choice": (carrier(DECLARE="no"), f"{PLACE}['DECLARE'] must be True or False, not 'no'."),
    "carried twice": (
        {"CARRIERS": {"a": LEAST, "b": LEAST}},
        "SKIPQUEUE['CARRIERS'] has the queue 'pdf' in 2 carriers; one carrier runs it.",
    ),
}


def test_what_is_wrong_is_one_clear_sentence(settings: Any, subtests: pytest.Subtests) -> None:
    for name, (value, said) in WRONG.items():
        with subtests.test(name):
            settings.SKIPQUEUE = value
            (problem,) = conf.problems()
            assert problem.startswith(said)


def test_without_the_app_the_problem_names_it(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(conf.APP_SETTINGS, "carriers")
    settings.SKIPQUEUE = carrier()
    (problem,) = conf.problems()
    assert problem.startswith(
        "SKIPQUEUE has no key 'CARRIERS'. Add 'django_skipqueue.contrib.celery' to INSTALLED_APPS"
    )
    (reported,) = checks.check_settings()
    assert (reported.id, reported.msg) == ("skipqueue.E001", problem)
