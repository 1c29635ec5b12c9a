"""A plugin of pytest for `python -m tests.guards`: a test that waits for what does not come fails sooner."""

from ..app import waiting

SECONDS = 20.0

waiting.DEADLINE = SECONDS
waiting.wait_until.__kwdefaults__ = {"deadline": SECONDS}
