"""Makes the carrier that the settings name.

Invariant: a process that uses no carrier does not import Celery by this package.
"""

from typing import TYPE_CHECKING

from django.utils.module_loading import import_string

from .carrier import CarrierMisconfigured
from .settings import CarrierSettings

if TYPE_CHECKING:
    from .celery_carrier import CeleryCarrier

INSTALL = 'pip install "django-skipqueue[celery]"'


def make_carrier(settings: CarrierSettings, alias: str) -> "CeleryCarrier":
    """The carrier for the jobs of this database. Does not connect. Raises `CarrierMisconfigured`."""
    try:
        from .celery_carrier import CeleryCarrier
        from .rabbitmq import NEEDED
    except ModuleNotFoundError as error:
        raise CarrierMisconfigured(
            f"The carrier {settings.name!r} needs the package {error.name!r}: {INSTALL}"
        ) from error
    described = f"Celery app {settings.app!r} of the carrier {settings.name!r}"
    try:
        app = import_string(settings.app)
    except Exception as error:  # whatever the project's module raises
        raise CarrierMisconfigured(f"The {described} cannot be imported: {error!r}") from error
    if not hasattr(app, "connection_for_write"):
        raise CarrierMisconfigured(f"{settings.app!r} of the carrier {settings.name!r} is no Celery app: {app!r}")
    try:
        return CeleryCarrier(
            settings.name,
            app,
            home=alias,
            queues=settings.queues,
            wait=settings.wait,
            declare=settings.declare,
            max_message_size=settings.max_message_size,
        )
    except CarrierMisconfigured:
        raise
    except (ImportError, KeyError) as error:  # kombu has no such transport, or its library is not installed
        raise CarrierMisconfigured(f"The broker of the {described} cannot be used: {error}. {NEEDED}") from error
    except Exception as error:  # its text may have the password
        raise CarrierMisconfigured(f"The broker_url of the {described} cannot be read. {NEEDED}") from error
