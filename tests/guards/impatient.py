"""A plugin of pytest for `python -m tests.guards`: each wait of a test for a condition ends after 20 seconds."""

from ..app import waiting

DEADLINE_SECONDS = 20.0

waiting.DEADLINE = DEADLINE_SECONDS
waiting.wait_until.__kwdefaults__ = {"deadline": DEADLINE_SECONDS}
