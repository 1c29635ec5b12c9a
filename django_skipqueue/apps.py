"""The app: finds every task at start, and registers the system checks."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class SkipQueueConfig(AppConfig):
    """Configuration of `django_skipqueue`."""

    name = "django_skipqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import each installed app's `jobs` module, so that its tasks are registered."""
        from . import checks

        checks.register_all()
        autodiscover_modules("jobs")
