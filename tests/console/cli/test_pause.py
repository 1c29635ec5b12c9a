"""`skipqueue pause` and `skipqueue resume`: an operator pauses a queue."""

from datetime import timedelta

import pytest

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Queue

from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.core
def test_a_queue_is_paused_until_it_is_resumed() -> None:
    make_job(queue_name="mail")
    result = skipqueue("pause", "mail", "--reason", "the server is down")
    assert (result.code, result.out) == (0, "")
    assert "Queue mail is paused until `skipqueue resume mail`." in result.err
    [paused] = Queue.objects.paused()
    assert (paused.paused_until, paused.reason) == (None, "the server is down")
    assert "@" in paused.paused_by
    assert skipqueue("resume", "mail").err == "Queue mail is resumed.\n"
    assert not Queue.objects.paused().exists()


@pytest.mark.core
def test_a_pause_may_have_an_end() -> None:
    make_job(queue_name="mail")
    assert "Queue mail is paused until 2" in skipqueue("pause", "mail", "--for", "1h30m").err
    paused = Queue.objects.get()
    assert paused.paused_at
    assert paused.paused_until
    assert paused.paused_until - paused.paused_at == timedelta(minutes=90)


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_unknown_queue_is_refused_with_a_suggestion(command: str) -> None:
    make_job(queue_name="mail")
    result = skipqueue(command, "mial")
    assert result.code == Exit.ERROR
    assert "No task, worker or job has the queue 'mial'. Did you mean 'mail'?" in result.err
    assert not Queue.objects.exists()


def test_resume_exits_with_3_if_the_queue_is_not_paused() -> None:
    make_job(queue_name="mail")
    result = skipqueue("resume", "mail")
    assert (result.code, result.err) == (3, "Queue mail is not paused.\n")
