"""A carrier (a message broker with its workers) in memory. A test makes it confirm, refuse, deliver or break."""

import socket
import threading
from collections.abc import Collection, Sequence

from django_skipqueue.contrib.celery import wire
from django_skipqueue.contrib.celery.carrier import (
    BegunJob,
    CarrierUnreachable,
    ReturnedJob,
    ReturnedOutcome,
    Taken,
    TooLarge,
)
from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef

Delivered = ReturnedOutcome | ReturnedJob | BegunJob


class FakeCarrier:
    """All relays of a test share it. Jobs and messages survive `lose_connection`, as on a broker's disk."""

    name = "celery"
    home = ""

    def __init__(self) -> None:
        self.confirms_at_once = True
        """Whether a job is confirmed as soon as it is published. If not, the test calls `confirm`."""
        self.refuses = False
        self.longest_arguments = 1_000_000
        """The largest number of characters that the arguments of a job may have."""
        self.is_blocked = False
        self.is_down = False
        self.jobs: dict[LeaseRef, ClaimedJob] = {}
        """The jobs that the carrier has and no worker has begun."""
        self.published: list[LeaseRef] = []
        """The leases of all jobs that were ever published, in order."""
        self.acknowledged_deliveries: list[int] = []
        """The numbers of the deliveries that the relay has acknowledged. The first delivery has the number 1."""
        self.unacknowledged: dict[int, Delivered] = {}
        self.unconfirmed: list[ClaimedJob] = []
        self._taken = Taken()
        self._next_delivery = 0
        self.lock = threading.RLock()
        self._test_socket, self._relay_socket = socket.socketpair()
        self._is_lost = False

    # What a relay calls

    def connect(self) -> None:
        with self.lock:
            if self.is_down:
                raise CarrierUnreachable("it is down")
            self._is_lost, self._taken = False, Taken()
            for delivered in self.unacknowledged.values():
                self._hand_to_relay(delivered)

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        with self.lock:
            self._require_connection()
            accepted = [job for job in jobs if len(job.args) <= self.longest_arguments]
            self.published += [job.ref for job in accepted]
            if self.refuses:
                self._taken.refused += [job.ref for job in accepted]
            else:
                self.unconfirmed += accepted
            if self.confirms_at_once:
                self.confirm()
            self._wake_relay()
            return [
                TooLarge(job, len(job.args), self.longest_arguments)
                for job in jobs
                if len(job.args) > self.longest_arguments
            ]

    def take(self) -> Taken:
        with self.lock:
            self._require_connection()
            taken, self._taken = self._taken, Taken()
            self._relay_socket.setblocking(False)
            while self._can_read():
                self._relay_socket.recv(4096)
            return taken

    def acknowledge(self, deliveries: Collection[int]) -> None:
        with self.lock:
            self._require_connection()
            for delivery in deliveries:
                self.acknowledged_deliveries.append(delivery)
                del self.unacknowledged[delivery]

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        with self.lock:
            for ref in refs:
                self.jobs.pop(ref, None)

    def fileno(self) -> int:
        return self._relay_socket.fileno()

    def close(self) -> None:
        with self.lock:
            self.unconfirmed.clear()

    # What a test calls

    def confirm(self, count: int | None = None) -> None:
        """Confirm the first `count` unconfirmed jobs, or all of them."""
        with self.lock:
            confirmed = self.unconfirmed[:count]
            self.unconfirmed = self.unconfirmed[len(confirmed) :]
            self.jobs.update((job.ref, job) for job in confirmed)
            self._taken.confirmed += [job.ref for job in confirmed]
            self._wake_relay()

    def finish(self, *jobs: ClaimedJob, outcome: Outcome = COMPLETED, is_written: bool = False) -> None:
        """Deliver an outcome of these jobs, or of all jobs that the carrier has."""
        with self.lock:
            for job in jobs or tuple(self.jobs.values()):
                self.jobs.pop(job.ref, None)
                attempt = Attempt(job, outcome, started=0.0, ended=0.1, worker="celery@here", is_written=is_written)
                self._deliver(ReturnedOutcome(self._next_delivery_number(), attempt))
            self._wake_relay()

    def give_back(self, job: ClaimedJob, reason: str, *, is_readable: bool = True) -> None:
        """Deliver a job without an outcome."""
        with self.lock:
            self.jobs.pop(job.ref, None)
            self._deliver(ReturnedJob(self._next_delivery_number(), job.ref, reason, job if is_readable else None))
            self._wake_relay()

    def deliver(self, body: bytes, *, id: object = None) -> None:
        """Deliver a message with any body, as if it came from the queue of outcomes."""
        with self.lock:
            taken = Taken()
            wire.add_outcomes(taken, 0, body, id, now=0.0)
            delivered_parts: list[Delivered] = [*taken.outcomes, *taken.jobs, *taken.begun]
            for delivered in delivered_parts:
                self._deliver(delivered._replace(delivery=self._next_delivery_number()))
            self._wake_relay()

    def deliver_back(self, body: bytes, *, id: object = None, headers: object = None) -> None:
        """Deliver a message with any body, as if it came from the queue of returned jobs."""
        with self.lock:
            self._deliver(wire.returned_job(self._next_delivery_number(), body, id, headers))
            self._wake_relay()

    def begin_again(self, job: ClaimedJob) -> None:
        """Deliver a note that a process begins this job, after the process that had received it before has died."""
        self.deliver(wire.join_outcomes([wire.encode_begun(job.ref, "default")]))

    def lose_connection(self) -> None:
        """Break the connection. Unconfirmed jobs are gone, as they may be with a real broker."""
        with self.lock:
            self._is_lost = True
            self.unconfirmed.clear()
            self._wake_relay()

    def end(self) -> None:
        """Close the sockets."""
        self._test_socket.close()
        self._relay_socket.close()

    def _deliver(self, delivered: Delivered) -> None:
        self.unacknowledged[delivered.delivery] = delivered
        self._hand_to_relay(delivered)

    def _hand_to_relay(self, delivered: Delivered) -> None:
        if isinstance(delivered, ReturnedOutcome):
            self._taken.outcomes.append(delivered)
        elif isinstance(delivered, BegunJob):
            self._taken.begun.append(delivered)
        else:
            self._taken.jobs.append(delivered)

    def _next_delivery_number(self) -> int:
        self._next_delivery += 1
        return self._next_delivery

    def _require_connection(self) -> None:
        if self._is_lost or self.is_down:
            raise CarrierUnreachable("the connection is lost")

    def _wake_relay(self) -> None:
        self._test_socket.send(b"\0")

    def _can_read(self) -> bool:
        try:
            return bool(self._relay_socket.recv(4096, socket.MSG_PEEK))
        except BlockingIOError:
            return False
