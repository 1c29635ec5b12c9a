"""The settings of the project with three queue databases. CHAOS_DATABASES has their URLs, one a line."""

import os

import environ

from .settings import *  # noqa: F403 (the same project)
from .settings import DATABASES
from .settings import SKIPQUEUE as OF_ONE

ALIASES = ("queue_1", "queue_2", "queue_3")
for alias, url in zip(ALIASES, os.environ["CHAOS_DATABASES"].splitlines(), strict=True):
    DATABASES[alias] = environ.Env.db_url_config(url)
    DATABASES[alias].setdefault("OPTIONS", {})["connect_timeout"] = 5
SKIPQUEUE = {**OF_ONE, "DATABASES": ALIASES}
