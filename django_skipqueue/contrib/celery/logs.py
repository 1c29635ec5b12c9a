"""The log lines of relays, and of Celery's workers that run jobs of a carrier, in the format of `events.logs`."""

import logging

from ...events.log_format import in_a_line, in_words
from ...events.logs import write_about_worker


def outcomes_wait(worker: str, error: BaseException) -> None:
    """Log that a Celery process cannot send outcomes to the broker. It tries again until the broker confirms them."""
    write_about_worker(logging.ERROR, "outcomes_wait", worker, reason=in_a_line(error), hint="they are sent again")


def outcomes_sent(worker: str) -> None:
    write_about_worker(logging.INFO, "outcomes_sent", worker)


def carried_process_ends(worker: str, error: BaseException) -> None:
    """Log that a Celery process can no longer run jobs. It ends immediately, and the broker delivers its jobs again."""
    write_about_worker(logging.CRITICAL, "carried_process_ends", worker, error, reason=in_a_line(error))


def carried_process_stops(worker: str) -> None:
    write_about_worker(logging.CRITICAL, "carried_process_stops", worker, hint="all of its slots are stuck")


def carrier_lost(relay: str, carrier: str, error: BaseException, retry_in: float) -> None:
    write_about_worker(
        logging.ERROR, "carrier_lost", relay, carrier=carrier, retry_in=in_words(retry_in), reason=in_a_line(error)
    )


def carrier_reached(relay: str, carrier: str) -> None:
    """Log that the relay has connected to the carrier at the first try."""
    write_about_worker(logging.INFO, "carrier_reached", relay, carrier=carrier)


def carrier_back(relay: str, carrier: str) -> None:
    write_about_worker(logging.INFO, "carrier_back", relay, carrier=carrier)


def carrier_refused(relay: str, carrier: str, count: int, retry_in: float) -> None:
    """Log that the carrier has refused jobs, because its queue is full or does not exist. The relay releases them."""
    hint, retry_text = "its queue is full, or gone", in_words(retry_in)
    write_about_worker(
        logging.WARNING, "carrier_refused", relay, carrier=carrier, count=count, retry_in=retry_text, hint=hint
    )


def carrier_blocked(relay: str, carrier: str) -> None:
    hint = "it lacks memory or space on its disk"
    write_about_worker(logging.WARNING, "carrier_blocked", relay, carrier=carrier, hint=hint)


def carrier_unblocked(relay: str, carrier: str) -> None:
    write_about_worker(logging.INFO, "carrier_unblocked", relay, carrier=carrier)


def message_unreadable(relay: str, carrier: str, count: int, total: int, reason: str) -> None:
    """Log that a relay cannot read messages, `total` of them since it started. `reason` is about the first of them."""
    hint = "it is acknowledged: somebody else writes to the broker, or another version of django_skipqueue"
    write_about_worker(
        logging.ERROR, "message_unreadable", relay, carrier=carrier, count=count, total=total, reason=reason, hint=hint
    )


def carried_returned(relay: str, carrier: str, count: int, reason: str) -> None:
    write_about_worker(logging.WARNING, "carried_jobs_returned", relay, carrier=carrier, count=count, reason=reason)


def returns_dropped(relay: str, carrier: str, count: int, job_id: int) -> None:
    """Log that a relay ignores jobs that came back. `job_id` is the first of them."""
    reason = "the carrier does not hold them under these leases"
    write_about_worker(
        logging.INFO, "carried_returns_dropped", relay, carrier=carrier, count=count, id=job_id, reason=reason
    )


def carried_not_begun(relay: str, carrier: str, count: int) -> None:
    """Log that jobs came back, because processes of the carrier died before they began them. This costs no attempt."""
    hint = "processes of the carrier end before they begin their jobs: their own log says why"
    write_about_worker(logging.WARNING, "carried_jobs_not_begun", relay, carrier=carrier, count=count, hint=hint)


def carrier_window_lost(relay: str, carrier: str, count: int) -> None:
    """Log that jobs that the broker has lost fill the window. Relays hand over no jobs until an operator acts."""
    hint = f"the broker has lost them, and no job is handed over: python manage.py runrelay --reclaim {carrier}"
    write_about_worker(logging.ERROR, "carrier_window_lost", relay, carrier=carrier, count=count, hint=hint)
