"""What an operator can ask of a worker."""

from typing import Literal

Request = Literal["restart", "stop"]
"""`restart`: this process finishes its jobs and is replaced. `stop`: the `runworker` that it belongs to stops, as after
SIGTERM."""

RESTART_REASON = "an operator has requested it"
