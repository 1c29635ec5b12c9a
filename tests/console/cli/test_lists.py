"""Every list of the command line, as text and as JSON, for a project that uses no optional part."""

import pytest

from django_skipqueue.console.cli.subcommand import Exit

from ...app.rows import make_job, make_worker
from .running import skipqueue

pytestmark = [pytest.mark.core, pytest.mark.django_db(transaction=True)]

TASK = "tests.app.jobs.noop"
EXPECTED_TEXTS = {
    "list": TASK,
    "list --failed": TASK,
    "list --retrying": TASK,
    "list --status running": TASK,
    "list --status scheduled": TASK,
    "status": "mail",
    "doctor": "",
}
"""The commands, each with a text that its output contains."""


@pytest.mark.parametrize("command", EXPECTED_TEXTS)
def test_each_list_shows_the_jobs(command: str) -> None:
    for status in ("queued", "running", "scheduled", "completed", "failed", "discarded"):
        make_job(status, queue_name="mail")
    make_job("scheduled", attempts=1)
    make_worker(name="w")
    for options in ((), ("--json",)):
        result = skipqueue(*command.split(), *options)
        assert result.code in (Exit.DONE, Exit.NEGATIVE), result
        assert result.out.strip() != "", result
        assert EXPECTED_TEXTS[command] in result.out


def test_show_prints_the_job() -> None:
    job = make_job("failed", last_error="ValueError: no")
    assert "ValueError: no" in skipqueue("show", job.pk).out
    [shown] = skipqueue("show", job.pk, "--json").objects
    assert (shown["id"], shown["status"]) == (job.pk, "failed")
