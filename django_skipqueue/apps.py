"""The Django app: when Django starts, it imports the modules with tasks, and registers the system checks."""

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string
from django.utils.translation import gettext_lazy as _


class SkipQueueConfig(AppConfig):
    """Configuration of `django_skipqueue`."""

    name = "django_skipqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Install the parts, and import the module `jobs` of each installed app, which registers its tasks.

        If Django's setting `TASKS` names the backend of this package, import the `tasks` modules as well.
        """
        from . import checks
        from .parts.installed import from_each_part
        from .values.part import install_parts

        install_parts(from_each_part("part", "PART"))
        checks.register_all()
        autodiscover_modules("jobs")
        import_module("django_skipqueue.console.jobs")
        for backend in _task_backends():
            if hasattr(backend, "discover_tasks"):  # only the backend of this package has this method
                backend.discover_tasks()


def _task_backends() -> Iterator[Any]:
    """The backend classes in Django's `TASKS` setting. Django's own checks report mistakes in it."""
    configured = getattr(settings, "TASKS", None) or {}
    for path in {params["BACKEND"] for params in configured.values() if "BACKEND" in params}:
        with suppress(ImportError):
            yield import_string(path)
