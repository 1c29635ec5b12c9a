"""What a supervisor's child runs: a worker, or a relay if the options name a carrier."""

from ..relay.relay import Relay
from ..runtime.worker_options import WorkerOptions
from ..worker.worker import Worker
from .process import WorkerProcess


def run_child(options: WorkerOptions, process: WorkerProcess, lifeline: int) -> int:
    runs: type[Relay | Worker] = Relay if options.carrier else Worker
    return runs(
        options,
        id=process.id,
        name=process.name,
        lifeline=lifeline,
        running_jobs=process.running_jobs,
        stamps=process.stamps,
        standby=process.standby,
    ).run()
