"""One supervisor of a steward: a name and the options, under which a new process replaces the last one."""

from dataclasses import dataclass, field

from ..runtime.protocol import EXIT_CLEAN
from ..runtime.worker_options import WorkerOptions
from ..supervisor.forked_process import ForkedProcess, Run
from ..supervisor.shared_state import SharedState
from ..supervisor.state import DatabaseState, SupervisorState
from ..values.times import NEVER

KILLED = 128
"""Added to the number of the signal that has killed a process, as shells do."""


@dataclass(eq=False)
class SupervisorProcess(ForkedProcess):
    """Used by the steward alone; its state also by the thread of the steward's health port."""

    options: WorkerOptions
    last_code: int = EXIT_CLEAN
    """How the last process ended; below 0 a signal."""
    shared: SharedState = field(init=False)
    """The state that the process shows."""

    def __post_init__(self) -> None:
        self.shared = SharedState(self.options)

    def fork(self, run: Run) -> None:
        """Fork a child as the base class does, with memory that it shares with the steward."""
        self.shared = SharedState(self.options)
        super().fork(run)

    @property
    def is_to_run(self) -> bool:
        return bool(self.pid) or self.start_at < NEVER

    @property
    def state(self) -> SupervisorState:
        """The state that the process has shown last. If it has ended, its workers are not said to run."""
        shown = self.shared.read()
        if self.pid:
            return shown
        workers = tuple(worker._replace(pid=0, has_started=False, is_frozen=False) for worker in shown.workers)
        return shown._replace(database=DatabaseState.UNKNOWN, workers=workers)

    @property
    def exit_code(self) -> int:
        """The exit code that a `runworker` for this database alone would have had."""
        if self.last_code == EXIT_CLEAN:
            return 0
        return self.last_code if self.last_code > 0 else KILLED - self.last_code
