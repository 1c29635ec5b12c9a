"""The settings for the row `several-databases`: a queue in each database of `BENCHMARKS_DATABASES` (one per line)."""

import os

import environ

from .settings import *  # noqa: F403 (the same project)

DATABASES = {
    "default" if number == 0 else f"queue_{number}": environ.Env.db_url_config(url)
    for number, url in enumerate(os.environ["BENCHMARKS_DATABASES"].splitlines())
}
SKIPQUEUE = {"DATABASES": tuple(DATABASES), "PLACEMENT": "spread"}
