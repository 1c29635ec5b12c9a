"""Makes the carrier that a setting describes.

Invariant: a process that uses no carrier does not import Celery by this package.
"""

from django.utils.module_loading import import_string

from ..setting_forms.carriers import CarrierSettings
from .carrier import Carrier, CarrierMisconfigured

INSTALL = 'pip install "django-skipqueue[celery]"'


def make_carrier(settings: CarrierSettings, alias: str) -> Carrier:
    """The carrier for the jobs of this database. Does not connect. Raises `CarrierMisconfigured`."""
    try:
        from .celery_carrier import CeleryCarrier
    except ModuleNotFoundError as error:
        raise CarrierMisconfigured(
            f"The carrier {settings.name!r} needs the package {error.name!r}: {INSTALL}"
        ) from error
    try:
        app = import_string(settings.app)
    except ImportError as error:
        raise CarrierMisconfigured(
            f"The Celery app {settings.app!r} of the carrier {settings.name!r} cannot be imported: {error}"
        ) from error
    if not hasattr(app, "connection_for_write"):
        raise CarrierMisconfigured(f"{settings.app!r} of the carrier {settings.name!r} is no Celery app: {app!r}")
    return CeleryCarrier(
        settings.name,
        app,
        home=alias,
        queues=settings.queues,
        wait=settings.wait,
        declare=settings.declare,
        max_message_size=settings.max_message_size,
    )
