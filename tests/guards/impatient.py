"""A pytest plugin for `python -m tests.guards`: tests wait for a condition for at most 20 seconds."""

from ..app import waiting

DEADLINE_SECONDS = 20.0

waiting.DEADLINE = DEADLINE_SECONDS
waiting.wait_until.__kwdefaults__ = {"deadline": DEADLINE_SECONDS}
