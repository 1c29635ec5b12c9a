"""Log lines of Celery's workers about carried jobs. In the format of `logs`: the event first, then `key=value`."""

import logging

from .log_format import in_a_line
from .logs import write_about_worker


def outcomes_wait(worker: str, error: BaseException) -> None:
    """Outcomes cannot be sent to the broker. They are sent again until it confirms them."""
    write_about_worker(logging.ERROR, "outcomes_wait", worker, reason=in_a_line(error), hint="they are sent again")


def outcomes_sent(worker: str) -> None:
    write_about_worker(logging.INFO, "outcomes_sent", worker)


def carried_process_ends(worker: str, error: BaseException) -> None:
    """A process of Celery cannot run jobs any more. It ends at once, and the broker delivers its jobs again."""
    write_about_worker(logging.CRITICAL, "carried_process_ends", worker, error, reason=in_a_line(error))


def carried_process_stops(worker: str) -> None:
    write_about_worker(logging.CRITICAL, "carried_process_stops", worker, hint="all of its slots are stuck")
