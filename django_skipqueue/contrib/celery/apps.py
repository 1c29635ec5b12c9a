"""The app: has `SKIPQUEUE` know the key `CARRIERS`, and plugs into the core."""

import sys
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SkipQueueCeleryConfig(AppConfig):
    """Configuration of `django_skipqueue.contrib.celery`."""

    name = "django_skipqueue.contrib.celery"
    label = "skipqueue_celery"
    verbose_name = _("Job queue: Celery")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, *args: Any) -> None:
        """Add the setting: other apps may read the settings before this one is ready."""
        super().__init__(*args)
        from .conf import add_setting

        add_setting()

    def ready(self) -> None:
        """Install the part, and register the checks. In a process with Celery, register the task of carried jobs."""
        from ...values.part import install_parts
        from . import checks
        from .conf import carriers
        from .part import PART

        install_parts([PART])
        checks.register_all()
        if "celery" in sys.modules and carriers():
            from . import task  # noqa: F401 (it registers itself; other processes do not import Celery)
