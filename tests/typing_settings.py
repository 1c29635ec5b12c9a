"""The settings that the type checker reads: the settings of the example project, with the app of the tests."""

from shop import settings
from shop.settings import *  # noqa: F403

INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.app"]
