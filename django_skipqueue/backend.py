"""A backend for Django's tasks: `TASKS = {"default": {"BACKEND": "django_skipqueue.backend.SkipQueueBackend"}}`."""

from .integrations.django_tasks.backend import SkipQueueBackend, SkipQueueTask

__all__ = ["SkipQueueBackend", "SkipQueueTask"]
