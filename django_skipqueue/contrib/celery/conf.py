"""The setting `CARRIERS` of the project."""

from collections.abc import Mapping

from ... import conf
from ...conf import AppSetting, settings
from .settings import CarrierSettings, made_from, problems

KEY = "carriers"


def carriers() -> Mapping[str, CarrierSettings]:
    """The engines outside of PostgreSQL that run the jobs of some queues, by name."""
    found: Mapping[str, CarrierSettings] = settings.of_apps[KEY]
    return found


def carrier_for(queue_name: str) -> CarrierSettings | None:
    """The carrier that runs the jobs of this queue; `None`: workers run them."""
    return next((carrier for carrier in carriers().values() if queue_name in carrier.queues), None)


def _queues(given: Mapping[str, CarrierSettings]) -> dict[str, str]:
    return {queue: carrier.name for carrier in given.values() for queue in carrier.queues}


def add_setting() -> None:
    """Let `SKIPQUEUE` have the key."""
    conf.add_setting(KEY, AppSetting(made_from=made_from, problems=problems, external_queues=_queues))
