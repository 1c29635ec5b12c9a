"""The log line of the archive, in the format of `events.logs`."""

import logging

from ...events.log_format import in_a_line, in_words
from ...events.logs import write


def partitions_not_made(error: BaseException, retry_in: float) -> None:
    """A partition of the archive could not be made. Jobs of other months are archived."""
    shown = {"error": in_a_line(error), "retry_in": in_words(retry_in)}
    write(logging.ERROR, "partitions_not_made", shown)
