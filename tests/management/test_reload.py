"""`runworker --reload`: reloads when code changes, and ends after Ctrl-C, with no process left."""

import signal
from collections.abc import Callable

import pytest

from django_skipqueue.models import Job, Worker

from ..app import jobs, worker_jobs
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, children, group_exists, is_alive, statuses, wait_for_statuses, workers
from ..supervisor.test_supervisor import let_jobs_go_on, wait_for_entries

RunWorker = Callable[..., ManagePy]
ONE_HOUR = "3600"
CTRL_C = "\x03"

pytestmark = pytest.mark.django_db(transaction=True)


def test_reload_restarts_the_worker_with_the_changed_code(runworker: RunWorker) -> None:
    process = runworker("--reload", "--poll-interval", ONE_HOUR, jobs="# nothing yet")
    (worker_before,) = workers()
    (process.folder / "extra" / "jobs.py").write_text(
        "from django_skipqueue import job\n\n\n@job\ndef fresh():\n    return {}\n"
    )
    wait_until(lambda: Worker.objects.exclude(pk=worker_before.pk).exists())
    Job.objects.enqueue("extra.jobs.fresh")
    wait_for_statuses(completed=1)
    assert not is_alive(worker_before.pid)
    process.send(signal.SIGTERM)
    process.wait()
    wait_until(lambda: not Worker.objects.exists(), "the worker ends with the command")


def test_ctrl_c_ends_a_reloading_worker_gracefully(runworker: RunWorker) -> None:
    worker_jobs.write.defer("x")
    process = runworker("--reload", "--poll-interval", ONE_HOUR)
    wait_for_statuses(completed=1)
    process.send_to_group(signal.SIGINT)
    process.wait()
    wait_until(lambda: not Worker.objects.exists())
    assert "Traceback" not in process.log


# On a terminal, where reloading is the default under DEBUG


@pytest.fixture
def run_on_terminal(runworker: RunWorker) -> RunWorker:
    """Starts `runworker` as a developer does."""
    return lambda *arguments, **options: runworker(
        "--poll-interval", ONE_HOUR, *arguments, **{"settings": "DEBUG = True", "terminal": True, **options}
    )


def test_ctrl_c_waits_for_the_job_that_runs_and_then_ends_everything(run_on_terminal: RunWorker) -> None:
    jobs.record_and_hold.defer("a", patience=60)
    process = run_on_terminal()
    wait_for_entries("a")
    process.type(CTRL_C)
    process.wait_for("supervisor stopping")
    assert process.process.poll() is None
    (child,) = children(process.process.pid)
    let_jobs_go_on()
    assert process.wait() == 0
    assert not is_alive(child)
    assert statuses() == {"completed": 1}
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")
    assert "Traceback" not in process.log


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_orphan(run_on_terminal: RunWorker) -> None:
    jobs.record_and_hold.defer("a", patience=600)
    process = run_on_terminal("--shutdown-timeout", "600")
    wait_for_entries("a")
    process.type(CTRL_C)
    process.wait_for("supervisor stopping")
    process.type(CTRL_C)
    process.wait()
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")
    assert statuses() == {"queued": 1}
    assert not Worker.objects.exists()


def test_ctrl_c_while_the_worker_is_still_starting_prints_no_traceback(run_on_terminal: RunWorker) -> None:
    process = run_on_terminal(settings="DEBUG = True\nimport time\nprint('starting', flush=True)\ntime.sleep(0.5)\n")
    process.wait_for("starting", times=2)  # by the command, and then by its child process
    process.type(CTRL_C)
    assert process.wait() == 0
    assert "Traceback" not in process.log
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")


LINGERS_AT_EXIT = """\
DEBUG = True
import atexit, os, signal

def linger():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("lingers", flush=True)
    signal.pause()

if "RUN_MAIN" in os.environ:  # the child of the reloader
    atexit.register(linger)
"""
"""Settings that make the process wait at its exit, when it no longer handles signals."""


def test_ctrl_c_while_a_reload_ends_the_worker_is_not_reported_as_a_failure(run_on_terminal: RunWorker) -> None:
    process = run_on_terminal(jobs="# nothing yet", settings=LINGERS_AT_EXIT)
    workers()
    (process.folder / "extra" / "jobs.py").write_text("# changed\n")
    process.wait_for("lingers")
    process.type(CTRL_C)
    assert process.wait() == 0
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_for_the_command_alone_reaches_its_worker(
    run_on_terminal: RunWorker, signal_number: signal.Signals
) -> None:
    jobs.record_and_hold.defer("a", patience=600)
    process = run_on_terminal("--shutdown-timeout", "600")
    wait_for_entries("a")
    process.send(signal_number)
    process.wait_for("supervisor stopping")
    process.send(signal_number)
    process.wait()
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")
    assert statuses() == {"queued": 1}


def test_no_process_is_left_when_the_command_is_killed(run_on_terminal: RunWorker) -> None:
    process = run_on_terminal()
    workers()
    process.send(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")


def test_code_that_cannot_be_imported_waits_for_the_next_change(run_on_terminal: RunWorker) -> None:
    process = run_on_terminal(jobs="# nothing yet")
    (worker_before,) = workers()
    source = process.folder / "extra" / "jobs.py"
    source.write_text("def (")
    process.wait_for("SyntaxError")
    process.wait_for("worker not reloaded")
    assert process.process.poll() is None
    source.write_text("from django_skipqueue import job\n\n@job\ndef fresh():\n    return 5\n")
    Job.objects.enqueue("extra.jobs.fresh")
    wait_for_statuses(completed=1)
    assert not is_alive(worker_before.pid)
    source.write_text("def (")
    process.wait_for("worker not reloaded", times=2)
    process.type(CTRL_C)
    assert process.wait() == 0
    wait_until(lambda: not group_exists(process.process.pid), "no process is left")


def test_a_new_file_beside_watched_files_restarts_the_worker(run_on_terminal: RunWorker) -> None:
    process = run_on_terminal(jobs="# nothing yet")
    (worker_before,) = workers()
    (process.folder / "extra" / "helpers.py").write_text("VALUE = 1\n")
    wait_until(lambda: Worker.objects.exclude(pk=worker_before.pk).exists())
    process.wait_for("changed=extra/helpers.py")


def test_a_reload_does_not_wait_for_a_long_job_and_logs_that_it_is_released(run_on_terminal: RunWorker) -> None:
    jobs.record_and_hold.defer("a", patience=600)
    process = run_on_terminal("--shutdown-timeout", "600", jobs="# nothing yet")
    wait_for_entries("a")
    (worker_before,) = workers()
    (process.folder / "extra" / "jobs.py").write_text("# changed\n")
    process.wait_for('changed=extra/jobs.py hint="jobs that still run in 2.0s are released"')
    wait_until(lambda: not is_alive(worker_before.pid))
    wait_until(lambda: Job.objects.running().exists(), "the next worker has claimed the job")
    assert Job.objects.get().attempts == 1
    let_jobs_go_on()
    wait_for_statuses(completed=1)


def test_a_failure_shows_its_traceback_in_colour(run_on_terminal: RunWorker) -> None:
    jobs.fail.using(max_attempts=1).defer("boom")
    process = run_on_terminal()
    process.wait_for("raise ValueError(message)")
    assert "\x1b[31mERROR   job failed\x1b[0m task=tests.app.jobs.fail" in process.log
    assert "django_skipqueue/worker" not in process.log  # the traceback begins in the code of the task


def test_with_no_color_the_log_has_no_colours(run_on_terminal: RunWorker) -> None:
    jobs.fail.using(max_attempts=1).defer("boom")
    process = run_on_terminal("--no-color")
    process.wait_for("raise ValueError(message)")
    assert "\x1b" not in process.log
