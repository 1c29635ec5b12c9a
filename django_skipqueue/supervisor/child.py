"""What a supervisor's child runs: a worker, or a relay if the options name a carrier."""

from dataclasses import replace
from functools import partial

from ..relay.relay import Relay
from ..runtime.own_connections import keep_sessions_alive, name_sessions
from ..runtime.worker_options import WorkerOptions
from ..values.records import session_name
from ..worker.worker import Worker
from .process import WorkerProcess


def run_child(options: WorkerOptions, process: WorkerProcess, lifeline: int) -> int:
    name_sessions(session_name(process.id) or "")
    if process.suspect:
        options = replace(options, concurrency=1, max_jobs=1)
    runs = Relay if options.carrier else partial(Worker, suspect=process.suspect)
    loop = runs(
        options,
        id=process.id,
        name=process.name,
        lifeline=lifeline,
        running_jobs=process.running_jobs,
        stamps=process.stamps,
        standby=process.standby,
    )
    loop.when_options_are_taken(partial(keep_sessions_alive, options.database))
    return loop.run()
