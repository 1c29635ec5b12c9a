"""The settings of the test suite with django-unfold, which replaces the templates of Django's admin."""

from .settings import *  # noqa: F403
from .settings import INSTALLED_APPS

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
