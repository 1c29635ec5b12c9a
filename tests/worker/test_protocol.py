"""The commands of a supervisor to a worker, and the names of the signals that end a process."""

import signal

from django_skipqueue.worker.protocol import CALL, STOP, STOP_NOW, decode_commands, encode_command, signal_name


def test_commands_that_are_read_together_come_out_one_by_one() -> None:
    commands = [(CALL, "mail"), (STOP, ""), (CALL, "größer als\n: ; 'x'"), (CALL, ""), (STOP_NOW, "")]
    data = b"".join(encode_command(kind, queue_name) for kind, queue_name in commands)
    assert list(decode_commands(data)) == commands


def test_empty_data_has_no_commands() -> None:
    assert list(decode_commands(b"")) == []


def test_a_signal_without_a_name_is_called_unnamed() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(signal.SIGRTMIN + 1) == "unnamed"
