"""`WorkerLoop` is the control loop of a worker process. It claims jobs, runs them, and writes their outcomes."""

import time

from ..events import liveness_logs
from ..queue.gates import sweep_gates
from ..queue.observe import held_now
from ..values.part import installed_parts
from ..values.records import NEVER, LeaseRef
from .attempts.executor import Executor
from .attempts.pool import Pool
from .attempts.running_attempt import Interrupter, RunningJobs
from .control_loop import ControlLoop, WatchItself
from .dispatcher import ReceiverCheck
from .in_exchange import make_in_exchange
from .in_flight import InFlightJobs
from .loop import Service, Timer
from .notes import capturing
from .options import WorkerOptions
from .protocol import EXIT_BLOCKED, EXIT_RECYCLED, EXIT_STUCK, SharedCounts, Stamps
from .watchers import Recycling, TakeOver

DRAIN_LOCKED_DELAY = 0.05
"""With --drain, the seconds until the next claim if there are jobs to run that were not claimed."""

LAST_EVENTS_SECONDS = 5.0
"""For how many seconds signal receivers may delay the end of a worker that holds no jobs."""

LAST_EVENTS_BEFORE_RELEASE = 1.0
LAST_EVENTS_AFTER_RELEASE = 0.5
"""For how many seconds signal receivers may delay the end of a worker, before and after it releases jobs that still
run. These times are short, because another worker may start the released jobs at once."""


class WorkerLoop(ControlLoop):
    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        lifeline: int,
        running_jobs: RunningJobs | None = None,
        stamps: Stamps | None = None,
        shared: SharedCounts | None = None,
        suspect: LeaseRef | None = None,
    ) -> None:
        """suspect: if it is given, the worker takes over this job, runs no other job, and ends."""
        super().__init__(options, id=id, name=name, lifeline=lifeline, stamps=stamps, shared=shared)
        interrupter = Interrupter(self.wakeup.call)
        executor = Executor(worker=name, database=options.database, interrupter=interrupter)
        in_exchange = make_in_exchange(self._store, id, claims_ahead=options.max_jobs is None)
        self.pool = Pool(
            executor,
            concurrency=options.concurrency,
            wake=self.wakeup.call,
            running_jobs=running_jobs,
            keeps_permits=True,
            begin_order=in_exchange.begin_order,
        )
        self.in_flight = InFlightJobs(
            options,
            id=id,
            name=name,
            store=self._store,
            control=self.control,
            pool=self.pool,
            dispatcher=self.dispatcher,
            shared=self.shared,
            in_exchange=in_exchange,
            may_claim=lambda now: not self.stopping and self.own_row.is_alive(now),
            exchanged=self._after_exchange,
        )
        services = self._services(options, interrupter)
        if suspect:
            services.insert(0, TakeOver(self._store, suspect, id, taken=self.in_flight.take_over, gone=self.stop))
        self._make_loop(services)
        self._pause_reason = ""  # the last reason that was logged

    def _services(self, options: WorkerOptions, interrupter: Interrupter) -> list[Service]:
        in_flight, control = self.in_flight, self.control
        return [
            Timer("time_limits", lambda: self.pool.next_deadline, self._enforce_limits),
            ReceiverCheck(
                self.dispatcher, who=f"worker {self.name}", hint="the process is replaced", then=self._stop_blocked
            ),
            in_flight.cancel_check,
            Recycling(
                options,
                interrupter,
                jobs_done=lambda: self.jobs_done,
                recycle=self._recycle,
                log_wait=lambda refs: liveness_logs.recycling_waits(self.name, [id for id, _ in refs]),
            ),
            in_flight.orphan_check,
            *([WatchItself(control, self.shared, on_listen=in_flight.claiming.start_over)] if options.listen else []),
            in_flight.exchanges,
            Timer("surplus_check", lambda: in_flight.surplus_at, in_flight.release_surplus),
            in_flight.suspects,
            *in_flight.exchanges.settle_services,
            *in_flight.exchanges.observing,
            in_flight.exchanges.write_notes,
        ]

    @property
    def jobs_done(self) -> int:
        return self.in_flight.exchanges.jobs_done

    def run(self) -> int:
        with capturing():
            return super().run()

    # One turn of the control loop

    def _turn(self) -> None:
        self._stamp()
        self._loop.run_due()
        if self.stopping:
            return
        reason = ""  # why the worker does not claim jobs, although it has free slots
        if self.dispatcher.is_full:
            reason = "too many events wait for signal receivers"
        elif not self.own_row.is_alive(time.monotonic()) and not self.control.is_broken:
            reason = "it could not write a heartbeat for half the worker timeout"
        if reason and reason != self._pause_reason:
            liveness_logs.claiming_paused(self.name, reason)
        elif self._pause_reason and not reason:
            liveness_logs.claiming_resumed(self.name)
        self._pause_reason = reason

    def _after_exchange(self, found_empty: bool) -> None:
        """After an exchange, stop if `--max-jobs` is reached, or if `--drain` was given and no jobs are left."""
        self._stop_if_max_jobs_are_done()
        if found_empty and self.options.drain and not self.stopping and not self.in_flight.has_open_jobs:
            self._stop_if_drained()

    def _enforce_limits(self) -> None:
        """Interrupt attempts that have timed out. Other jobs get the slots of attempts that are stuck.

        If all slots are stuck, or if code of finished attempts blocks other jobs, the process ends and is replaced.
        """
        for running in self.pool.enforce_limits():
            self.in_flight.claiming.gave_up(running.job, running.started, time.monotonic())
            self._stop_if_max_jobs_are_done()
        if self.pool.find_blockage() or self.pool.is_used_up:
            self._stop_blocked()

    def _stop_blocked(self) -> None:
        """Stop and be replaced, because stuck attempts, code of finished attempts or a receiver block other jobs."""
        if self.pool.is_used_up and not self.stopping:
            liveness_logs.recycling(self.name, "every slot has an attempt that is stuck")
        self._exit_code = EXIT_STUCK if self.pool.is_used_up else EXIT_BLOCKED
        self.stop()

    def _recycle(self, reason: str) -> None:
        if not self.stopping:
            liveness_logs.recycling(self.name, reason)
            self._exit_code = EXIT_STUCK if self.pool.has_stuck else EXIT_RECYCLED
            self.stop(NEVER)  # no deadline: running jobs may finish

    def _stop_if_max_jobs_are_done(self) -> None:
        """Stop if --max-jobs is reached. Stuck attempts count, because they end with the process."""
        if self.options.max_jobs is not None and self.jobs_done + len(self.pool.kept_back) >= self.options.max_jobs:
            self.stop()

    def _stop_if_drained(self) -> None:
        """Stop for --drain, if no job is queued or due. Jobs that other workers have claimed do not count."""
        with self.control.handling_errors():
            if self.has_runnable_jobs() or (not self.in_flight.jobs and self._has_orphans()):
                # The last claim has skipped a job, because a supervisor or another worker has locked it at that moment.
                self.in_flight.claiming.check_at(time.monotonic() + DRAIN_LOCKED_DELAY)
            else:
                self.stop()

    def has_runnable_jobs(self) -> bool:
        """Return whether a job of this worker's queues is queued or due. The last claim may have skipped such a job."""
        if any(part.before_drained(self._store) for part in installed_parts() if part.before_drained is not None):
            return True
        if self._store.admit().has_changed_jobs or sweep_gates(self._store):
            return True
        next_due = self._store.next_due()
        if next_due is not None and next_due <= 0:
            return True
        return any(self.options.serves(name) for name in self._store.queues_with_jobs())

    def _has_orphans(self) -> bool:
        """Return whether the row of a job names this worker, which holds no job. The orphan check releases this job."""
        if self.id not in held_now(self._store, shown=1):
            return False
        self.in_flight.orphan_check.expect(time.monotonic())
        return True

    # Waiting

    def _has_work(self) -> bool:
        return bool(self.pool.finished) and not self.control.is_broken

    def _called(self, queue_name: str) -> None:
        self.in_flight.claiming.called(queue_name)

    def _offer(self) -> None:
        self.in_flight.offer(0 if self.control.is_broken else self.in_flight.room(time.monotonic()))

    # Stopping

    def _shut_down(self) -> None:
        """Release jobs that have not started, settle jobs when they finish, and release all others at the deadline.

        The worker does not wait for stuck attempts. If a stuck attempt was kept back, its outcome is written at the
        end.
        """
        in_flight = self.in_flight
        in_flight.begin_to_stop()
        while in_flight.has_open_jobs and (seconds_left := self._shutdown_deadline - time.monotonic()) > 0:
            self._sleep(seconds_left)
            self._turn()
        self.pool.charge_only_stuck()
        self._stamp()
        in_flight.settle_last()
        self._emit_stop()
        # Send events before the release of running jobs. Afterwards this process must end soon, because another worker
        # may start the released jobs at once.
        self.dispatcher.flush(timeout=LAST_EVENTS_BEFORE_RELEASE if in_flight.jobs else LAST_EVENTS_SECONDS)
        still_running = in_flight.release_running()
        for service in in_flight.exchanges.observing:
            with self.control.handling_errors(refused=service.refused):
                service.run(time.monotonic())
        with self.control.handling_errors():
            self._store.delete_workers([self.id])
        self.dispatcher.stop(timeout=LAST_EVENTS_AFTER_RELEASE)
        if not still_running and self._exit_code not in (EXIT_STUCK, EXIT_BLOCKED):
            self.pool.stop()
        self.control.close()
