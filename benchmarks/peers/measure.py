"""`python -m benchmarks.peers.measure PEER WHAT JOBS`: make one measurement of a peer, and print it as JSON.

It runs in the virtual environment of the peer, so it imports only the standard library and the peer.
"""

import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..figures import Figures, percentile
from . import marks
from .peer import AnyPeer, LimitedPeer, Peer, SteppedPeer

WARM_UP = 10
"""Jobs that are enqueued before the measured ones."""
PATIENCE = 30.0
"""Seconds after which `latency` ends, because some workers look for jobs only once a second."""


PATIENCE_WITH_LIMITS = 900.0

STEPS = 1_000
"""The steps of the workflow that runs alone."""


def drain_default(peer: Peer, jobs: int) -> Figures:
    """Drain a queue with the settings of the peer's quick start."""
    return _drain(peer, jobs, best=False)


def drain_best(peer: Peer, jobs: int) -> Figures:
    """Drain a queue with the best documented settings."""
    return _drain(peer, jobs, best=True)


def drain_limited(peer: LimitedPeer, jobs: int) -> Figures:
    """Drain a queue of jobs of which two per key may run at once, with the best documented settings."""
    peer.enqueue("mark", 0)
    peer.enqueue_limited([number % marks.KEYS for number in range(jobs)])
    with _worker(peer.worker(best=True)) as worker:
        _wait_until(worker, lambda: peer.unfinished() == 0, seconds=PATIENCE_WITH_LIMITS)
        ended = time.time()
    return {"jobs/s": jobs / (ended - marks.found()[0])}


def enqueue(peer: Peer, jobs: int) -> Figures:
    """Enqueue jobs one at a time, each durable before the next, and then many jobs by one call."""
    for number in range(WARM_UP):
        peer.enqueue("noop", number)
    rounds = min(jobs, 1_000)
    started = time.perf_counter()
    for number in range(rounds):
        peer.enqueue("noop", number)
    one = time.perf_counter() - started
    started = time.perf_counter()
    peer.enqueue_many(range(jobs))
    return {"one/s": rounds / one, "bulk/s": jobs / (time.perf_counter() - started)}


def latency(peer: Peer, jobs: int) -> Figures:
    """The time from the call that enqueues a job to the first line of its task, on an idle worker."""
    called = {}
    end = time.monotonic() + PATIENCE
    with _worker(peer.worker(best=False)) as worker:
        for number in range(-WARM_UP, min(jobs, 200)):
            called[number] = time.time()
            peer.enqueue("mark", number)
            _wait_until(worker, partial(marks.is_there, number))
            if time.monotonic() > end:
                break
    found = marks.found()
    waits = [(found[number] - called[number]) * 1000 for number in called if number >= 0]
    return {"ms p50": statistics.median(waits), "ms p99": percentile(waits, 0.99)}


def one_workflow(peer: SteppedPeer, _jobs: int) -> Figures:
    """The steps of a workflow that runs alone."""
    return {"steps/s": STEPS / _seconds_of_workflows(peer, 1, steps=STEPS)}


def workflows(peer: SteppedPeer, jobs: int) -> Figures:
    """Drain a queue of workflows of ten steps each. One process runs four of them at once."""
    return {"workflows/s": jobs / _seconds_of_workflows(peer, jobs, steps=10)}


MEASUREMENTS: dict[str, Callable[[Any, int], Figures]] = {
    measurement.__name__: measurement
    for measurement in (drain_default, drain_best, drain_limited, enqueue, latency, one_workflow, workflows)
}


def _drain(peer: Peer, jobs: int, *, best: bool) -> Figures:
    """Time a drain from the mark before the jobs to the mark after them, without the start of the worker."""
    peer.enqueue("mark", 0)
    peer.enqueue_many(range(jobs))
    peer.enqueue("mark", 1)
    with _worker(peer.worker(best=best)) as worker:
        _wait_until(worker, lambda: len(marks.found()) == 2)
        _wait_until(worker, lambda: peer.unfinished() == 0)
    found = marks.found()
    return {"jobs/s": jobs / (found[1] - found[0])}


def _seconds_of_workflows(peer: SteppedPeer, number: int, *, steps: int) -> float:
    """The seconds from the first step of all workflows to the last step, without the start of the worker."""
    peer.enqueue_workflows(range(number), steps)
    with _worker(peer.worker_of_four()) as worker:
        _wait_until(worker, lambda: peer.unfinished() == 0)
    moments = marks.found().values()
    return max(moments) - min(moments)


@contextmanager
def _worker(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in its own process group, and stop it at the end of the block."""
    quiet = subprocess.DEVNULL
    with (
        _log().open("wb") as log,
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=log, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until(worker: subprocess.Popen[bytes], condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended by itself: {_log().read_text().strip()[-200:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the worker did not finish its jobs within {seconds:g} s")
        time.sleep(0.02)


def _log() -> Path:
    """The file to which the worker's standard error goes."""
    return Path(os.environ[marks.FILE]).with_suffix(".log")


def main() -> None:
    """Measure in this process, which `python -m benchmarks.peers` has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the worker and the server end as well
    name, what, jobs = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[marks.FILE] = str(Path(folder) / "marks")
        if "DJANGO_SETTINGS_MODULE" in os.environ:
            importlib.import_module("django").setup()
        peer = cast(AnyPeer, importlib.import_module(f"benchmarks.peers.{name}"))
        peer.prepare()
        figures = MEASUREMENTS[what](peer, int(jobs))
    print(json.dumps({"title": peer.TITLE, "history": peer.HISTORY, "figures": figures}))


if __name__ == "__main__":
    main()
