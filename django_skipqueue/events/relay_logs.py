"""Log lines about relays and their carriers. In the format of `logs`: the event first, then `key=value`."""

import logging

from .log_format import in_a_line, in_words
from .logs import write_about_worker


def carrier_lost(relay: str, carrier: str, error: BaseException, retry_in: float) -> None:
    write_about_worker(
        logging.ERROR, "carrier_lost", relay, carrier=carrier, retry_in=in_words(retry_in), reason=in_a_line(error)
    )


def carrier_reached(relay: str, carrier: str) -> None:
    """The relay has opened its connection to the carrier at the first try."""
    write_about_worker(logging.INFO, "carrier_reached", relay, carrier=carrier)


def carrier_back(relay: str, carrier: str) -> None:
    write_about_worker(logging.INFO, "carrier_back", relay, carrier=carrier)


def carrier_refused(relay: str, carrier: str, count: int, retry_in: float) -> None:
    """The carrier has not taken these jobs: its queue is full or gone. They are released."""
    hint, again = "its queue is full, or gone", in_words(retry_in)
    write_about_worker(
        logging.WARNING, "carrier_refused", relay, carrier=carrier, count=count, retry_in=again, hint=hint
    )


def carrier_blocked(relay: str, carrier: str) -> None:
    hint = "it lacks memory or space on its disk"
    write_about_worker(logging.WARNING, "carrier_blocked", relay, carrier=carrier, hint=hint)


def carrier_unblocked(relay: str, carrier: str) -> None:
    write_about_worker(logging.INFO, "carrier_unblocked", relay, carrier=carrier)


def carried_returned(relay: str, carrier: str, count: int, reason: str) -> None:
    write_about_worker(logging.WARNING, "carried_jobs_returned", relay, carrier=carrier, count=count, reason=reason)
