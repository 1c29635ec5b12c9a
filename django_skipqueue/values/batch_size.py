"""How many rows one statement takes: half as many after each statement that failed. Pure.

After a success the number grows by an eighth only, so that most statements succeed while PostgreSQL is slow.
"""

MOST = 10_000
"""Rows of one statement while none has failed: more than a worker ever holds."""


class BatchSize:
    def __init__(self) -> None:
        self.rows = MOST
        """How many rows the next statement may take."""

    def failed(self, rows: int) -> None:
        self.rows = max(1, min(rows, self.rows) // 2)

    def succeeded(self) -> None:
        if self.rows < MOST:
            self.rows += max(1, self.rows // 8)
