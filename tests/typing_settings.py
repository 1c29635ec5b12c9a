"""The settings that the type checker reads: those of the example project, with the models of the tests."""

from shop import settings
from shop.settings import *  # noqa: F403

INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.app"]
