"""How many rows one statement takes: half as many after each time that PostgreSQL did not manage them. Pure.

It grows again by an eighth at a time: where PostgreSQL is slow for long, most statements succeed.
"""

MOST = 10_000
"""Rows of one statement, where nothing has gone wrong. More than a worker ever holds."""


class BatchSize:
    """For one kind of statement."""

    def __init__(self) -> None:
        self.rows = MOST
        """How many rows the next statement may take."""

    def failed(self, rows: int) -> None:
        """Note that a statement with so many rows got no answer, for whatever reason."""
        self.rows = max(1, min(rows, self.rows) // 2)

    def succeeded(self) -> None:
        """Note that one got an answer."""
        if self.rows < MOST:
            self.rows += max(1, self.rows // 8)
