"""The setting `CARRIERS`: the engines outside of PostgreSQL that run the jobs of some queues, and how each is made.

For example: `{"celery": {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf", "import": "slow"}, "WINDOW": 500}}`.

Invariant: a process that uses no carrier does not import Celery by this package.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from ...conf import AppSetting, settings
from ...values.bounds import NUMBER_RANGES, did_you_mean

if TYPE_CHECKING:
    from .celery_carrier import CeleryCarrier


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A name that can stand in the id of a row and on a command line."""

RESERVED = ("amq.", "skipqueue.")
"""The names of RabbitMQ's own queues begin so, and those of the relay's."""

LONGEST_QUEUE_NAME = 255
"""The length of the longest name of a queue that RabbitMQ takes, in bytes."""


@dataclass(frozen=True, kw_only=True)
class CarrierSettings:
    name: str
    app: str
    """The path of the project's Celery app."""
    queues: Mapping[str, str]
    """The queues of Celery, by the names of ours."""
    window: int = 2_000
    """How many jobs the carrier holds, at most."""
    wait: float = 600.0
    """Seconds that a job may wait there before it comes back."""
    max_message_size: int = 16 * 1024 * 1024
    """Bytes of the largest message that the broker takes. RabbitMQ 4 takes as many by default, and RabbitMQ 3 more."""
    declare: bool = True
    """Whether relays and Celery's workers declare the queues, with the arguments that relays need."""


def made_from(given: Mapping[str, Mapping[str, Any]]) -> dict[str, CarrierSettings]:
    return {
        name: CarrierSettings(name=name, **{key.lower(): value for key, value in options.items()})
        for name, options in given.items()
    }


def problems(name: str, given: object) -> Iterator[str]:
    """One sentence for each part that is not valid. `name` is the setting's name in the sentence."""
    if not isinstance(given, dict):
        yield f"{name} must be a dict of carriers by name, not {given!r}."
        return
    for carrier, options in given.items():
        place = f"{name}[{carrier!r}]"
        if not isinstance(carrier, str) or not NAME.fullmatch(carrier):
            yield (
                f"{name} has the key {carrier!r}; a key is the name of a carrier: up to 100 letters and digits, and _, "
                ". or - after the first."
            )
        elif not isinstance(options, dict):
            yield f"{place} must be a dict, not {options!r}."
        else:
            yield from _problems(place, options)
    yield from _carried_twice(name, given)


def _problems(place: str, options: dict[object, object]) -> Iterator[str]:
    for key, value in options.items():
        if isinstance(key, str) and key in KEYS:
            yield from KEYS[key](f"{place}[{key!r}]", value)
        else:
            yield f"{place} has no key {key!r}.{did_you_mean(str(key).upper(), list(KEYS))}"
    for key, meaning in REQUIRED.items():
        if key not in options:
            yield f"{place} lacks the key {key!r}: {meaning}."


def _app_problems(place: str, value: object) -> Iterator[str]:
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        yield f"{place} must be {REQUIRED['APP']}, not {value!r}."


def _queues_problems(place: str, value: object) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield f"{place} must be {REQUIRED['QUEUES']}, not {value!r}."
        return
    for queue, of_celery in value.items():
        if not isinstance(queue, str) or not queue or queue.strip() != queue or "," in queue:
            yield f"{place} has the key {queue!r}; a key is the name of a queue."
        elif not isinstance(of_celery, str) or not 0 < len(of_celery.encode()) <= LONGEST_QUEUE_NAME:
            yield (
                f"{place}[{queue!r}] must be the name of a queue of Celery, of at most {LONGEST_QUEUE_NAME} bytes, "
                f"not {of_celery!r}."
            )
        elif of_celery.startswith(RESERVED):
            yield f"{place}[{queue!r}] must not begin with {' or '.join(map(repr, RESERVED))}: {of_celery!r}."


def _number_problems(option: str, place: str, value: object) -> Iterator[str]:
    if not NUMBER_RANGES[option].allows(value):
        yield f"{place} must be {NUMBER_RANGES[option]}, not {value!r}."


def _declare_problems(place: str, value: object) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{place} must be True or False, not {value!r}."


KEYS: dict[str, Callable[[str, object], Iterator[str]]] = {
    "APP": _app_problems,
    "QUEUES": _queues_problems,
    "WINDOW": partial(_number_problems, "window"),
    "WAIT": partial(_number_problems, "wait"),
    "MAX_MESSAGE_SIZE": partial(_number_problems, "max_message_size"),
    "DECLARE": _declare_problems,
}
"""The functions that check the options of a carrier, by key. Each takes the place of the value in the setting too."""

REQUIRED = {
    "APP": "the path of the project's Celery app, such as 'shop.celery.app'",
    "QUEUES": "a dict of Celery's queues by the names of the queues that it carries, such as {'pdf': 'pdf'}",
}
"""The options that every carrier has, and what they are."""


def _carried_twice(name: str, given: dict[object, object]) -> Iterator[str]:
    """One sentence for each queue that several carriers run: an operator could not tell where its jobs are."""
    dicts = [options for options in given.values() if isinstance(options, dict)]
    carried = [options["QUEUES"] for options in dicts if isinstance(options.get("QUEUES"), dict)]
    for queue, number in Counter(queue for queues in carried for queue in queues).items():
        if number > 1:
            yield f"{name} has the queue {queue!r} in {number} carriers; one carrier runs it."


KEY, CARRIERS = (
    "carriers",
    AppSetting(
        made_from=made_from,
        problems=problems,
        external_queues=lambda given: {queue: each.name for each in given.values() for queue in each.queues},
    ),
)
"""The key of `SKIPQUEUE`, and what stands there."""


def carriers() -> Mapping[str, CarrierSettings]:
    """The engines outside of PostgreSQL that run the jobs of some queues, by name."""
    found: Mapping[str, CarrierSettings] = settings.of_apps[KEY]
    return found


def carrier_for(queue_name: str) -> CarrierSettings | None:
    """The carrier that runs the jobs of this queue; `None`: workers run them."""
    return next((carrier for carrier in carriers().values() if queue_name in carrier.queues), None)


INSTALL = 'pip install "django-skipqueue[celery]"'


def make_carrier(chosen: CarrierSettings, alias: str) -> "CeleryCarrier":
    """The carrier for the jobs of this database. Does not connect. Raises `CarrierMisconfigured`."""
    from .carrier import CarrierMisconfigured

    try:
        from .celery_carrier import CeleryCarrier
        from .rabbitmq import NEEDED
    except ModuleNotFoundError as error:
        raise CarrierMisconfigured(
            f"The carrier {chosen.name!r} needs the package {error.name!r}: {INSTALL}"
        ) from error
    described = f"Celery app {chosen.app!r} of the carrier {chosen.name!r}"
    try:
        app = import_string(chosen.app)
    except Exception as error:  # whatever the project's module raises
        raise CarrierMisconfigured(f"The {described} cannot be imported: {error!r}") from error
    if not hasattr(app, "connection_for_write"):
        raise CarrierMisconfigured(f"{chosen.app!r} of the carrier {chosen.name!r} is no Celery app: {app!r}")
    try:
        return CeleryCarrier(chosen, app, home=alias)
    except CarrierMisconfigured:
        raise
    except (ImportError, KeyError) as error:  # kombu has no such transport, or its library is not installed
        raise CarrierMisconfigured(f"The broker of the {described} cannot be used: {error}. {NEEDED}") from error
    except Exception as error:  # its text may have the password
        raise CarrierMisconfigured(f"The broker_url of the {described} cannot be read. {NEEDED}") from error
