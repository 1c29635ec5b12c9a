"""The setting `CARRIERS`: the systems outside of PostgreSQL, such as Celery, that run the jobs of some queues.

For example: `{"celery": {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf", "import": "slow"}, "WINDOW": 500}}`.

This package imports Celery only in processes that use a carrier.
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


CARRIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""The pattern of a carrier's name, which must fit into a row's id and a command line."""

RESERVED_PREFIXES = ("amq.", "skipqueue.")
"""The names of RabbitMQ's own queues, and of the relays' queues, begin with these."""

LONGEST_QUEUE_NAME = 255
"""The longest queue name that RabbitMQ accepts, in bytes."""


@dataclass(frozen=True, kw_only=True)
class CarrierSettings:
    name: str
    app: str
    """The path of the project's Celery app."""
    queues: Mapping[str, str]
    """For each queue name of this package, the name of Celery's queue."""
    window: int = 2_000
    """The maximum number of jobs that the carrier may have."""
    wait: float = 600.0
    """Seconds that a job may wait for a Celery worker before it comes back."""
    max_message_size: int = 16 * 1024 * 1024
    """The largest message that the broker accepts, in bytes. The default is RabbitMQ 4's; RabbitMQ 3 accepts more."""
    declare: bool = True
    """Whether relays and Celery's workers declare the queues themselves."""


def made_from(setting: Mapping[str, Mapping[str, Any]]) -> dict[str, CarrierSettings]:
    return {
        name: CarrierSettings(name=name, **{key.lower(): value for key, value in options.items()})
        for name, options in setting.items()
    }


def problems(name: str, setting: object) -> Iterator[str]:
    """Yield a sentence for each part that is not valid. `name`: the setting's name in the sentence."""
    if not isinstance(setting, dict):
        yield f"{name} must be a dict of carriers by name, not {setting!r}."
        return
    for carrier, options in setting.items():
        place = f"{name}[{carrier!r}]"
        if not isinstance(carrier, str) or not CARRIER_NAME.fullmatch(carrier):
            yield (
                f"{name} has the key {carrier!r}; a key is the name of a carrier: up to 100 letters and digits, and _, "
                ". or - after the first."
            )
        elif not isinstance(options, dict):
            yield f"{place} must be a dict, not {options!r}."
        else:
            yield from _problems(place, options)
    yield from _queues_listed_twice(name, setting)


def _problems(place: str, options: dict[object, object]) -> Iterator[str]:
    for key, value in options.items():
        if isinstance(key, str) and key in CARRIER_OPTIONS:
            yield from CARRIER_OPTIONS[key](f"{place}[{key!r}]", value)
        else:
            yield f"{place} has no key {key!r}.{did_you_mean(str(key).upper(), list(CARRIER_OPTIONS))}"
    for key, meaning in REQUIRED_OPTIONS.items():
        if key not in options:
            yield f"{place} lacks the key {key!r}: {meaning}."


def _app_problems(place: str, value: object) -> Iterator[str]:
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        yield f"{place} must be {REQUIRED_OPTIONS['APP']}, not {value!r}."


def _queues_problems(place: str, value: object) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield f"{place} must be {REQUIRED_OPTIONS['QUEUES']}, not {value!r}."
        return
    for queue, celery_queue in value.items():
        if not isinstance(queue, str) or not queue or queue.strip() != queue or "," in queue:
            yield f"{place} has the key {queue!r}; a key is the name of a queue."
        elif not isinstance(celery_queue, str) or not 0 < len(celery_queue.encode()) <= LONGEST_QUEUE_NAME:
            yield (
                f"{place}[{queue!r}] must be the name of a queue of Celery, of at most {LONGEST_QUEUE_NAME} bytes, "
                f"not {celery_queue!r}."
            )
        elif celery_queue.startswith(RESERVED_PREFIXES):
            prefixes = " or ".join(map(repr, RESERVED_PREFIXES))
            yield f"{place}[{queue!r}] must not begin with {prefixes}: {celery_queue!r}."


def _number_problems(option: str, place: str, value: object) -> Iterator[str]:
    if not NUMBER_RANGES[option].allows(value):
        yield f"{place} must be {NUMBER_RANGES[option]}, not {value!r}."


def _declare_problems(place: str, value: object) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{place} must be True or False, not {value!r}."


CARRIER_OPTIONS: dict[str, Callable[[str, object], Iterator[str]]] = {
    "APP": _app_problems,
    "QUEUES": _queues_problems,
    "WINDOW": partial(_number_problems, "window"),
    "WAIT": partial(_number_problems, "wait"),
    "MAX_MESSAGE_SIZE": partial(_number_problems, "max_message_size"),
    "DECLARE": _declare_problems,
}
"""The function that checks each option of a carrier. Its first argument says where the value is in the settings."""

REQUIRED_OPTIONS = {
    "APP": "the path of the project's Celery app, such as 'shop.celery.app'",
    "QUEUES": "a dict of Celery's queues by the names of the queues that it carries, such as {'pdf': 'pdf'}",
}
"""The options that every carrier must have, with a description of their values."""


def _queues_listed_twice(name: str, setting: dict[object, object]) -> Iterator[str]:
    """Yield a sentence for each queue that several carriers list, because nobody could tell where its jobs are."""
    valid_options = [options for options in setting.values() if isinstance(options, dict)]
    queues_by_carrier = [options["QUEUES"] for options in valid_options if isinstance(options.get("QUEUES"), dict)]
    carrier_counts = Counter(queue for queues in queues_by_carrier for queue in queues)
    for queue, carrier_count in carrier_counts.items():
        if carrier_count > 1:
            yield f"{name} lists the queue {queue!r} in {carrier_count} carriers, but only one carrier may run it."


CARRIERS_KEY, CARRIERS_SETTING = (
    "carriers",
    AppSetting(
        made_from=made_from,
        problems=problems,
        external_queues=lambda carriers_by_name: {
            queue: carrier.name for carrier in carriers_by_name.values() for queue in carrier.queues
        },
    ),
)
"""The key in `SKIPQUEUE`, and how to check and read its value."""


def carriers() -> Mapping[str, CarrierSettings]:
    """Return the carriers of the settings, by name."""
    by_name: Mapping[str, CarrierSettings] = settings.of_apps[CARRIERS_KEY]
    return by_name


def carrier_for(queue_name: str) -> CarrierSettings | None:
    """Return the carrier that runs the jobs of this queue; `None` if workers run them."""
    return next((carrier for carrier in carriers().values() if queue_name in carrier.queues), None)


INSTALL_CELERY = 'pip install "django-skipqueue[celery]"'


def make_carrier(carrier: CarrierSettings, alias: str) -> "CeleryCarrier":
    """Make the carrier for the jobs of this database, not yet connected. Raises `CarrierMisconfigured`."""
    from .carrier import CarrierMisconfigured

    try:
        from .celery_carrier import CeleryCarrier
        from .rabbitmq import RABBITMQ_NEEDED
    except ModuleNotFoundError as error:
        raise CarrierMisconfigured(
            f"The carrier {carrier.name!r} needs the package {error.name!r}: {INSTALL_CELERY}"
        ) from error
    app_description = f"Celery app {carrier.app!r} of the carrier {carrier.name!r}"
    try:
        app = import_string(carrier.app)
    except Exception as error:  # the project's module may raise anything
        raise CarrierMisconfigured(f"The {app_description} cannot be imported: {error!r}") from error
    if not hasattr(app, "connection_for_write"):
        raise CarrierMisconfigured(f"{carrier.app!r} of the carrier {carrier.name!r} is not a Celery app: {app!r}")
    try:
        return CeleryCarrier(carrier, app, home=alias)
    except CarrierMisconfigured:
        raise
    except (ImportError, KeyError) as error:  # kombu has no such transport, or its library is not installed
        raise CarrierMisconfigured(
            f"The broker of the {app_description} cannot be used: {error}. {RABBITMQ_NEEDED}"
        ) from error
    except Exception as error:  # the error's text may contain the password
        raise CarrierMisconfigured(
            f"The broker_url of the {app_description} cannot be read. {RABBITMQ_NEEDED}"
        ) from error
