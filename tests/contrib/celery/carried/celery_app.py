"""The Celery app of a project. Its settings differ from test to test, so they come from the environment."""

import json
import os

from celery import Celery

app = Celery("project", broker=os.environ["TESTS_BROKER_URL"])
app.conf.update(json.loads(os.environ.get("TESTS_CELERY", "{}")))
