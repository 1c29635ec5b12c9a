"""How the end of a process is said."""

import signal

from django_skipqueue.runtime.protocol import signal_name


def test_a_signal_without_a_name_is_said_as_well() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(signal.SIGRTMIN + 1) == "unnamed"
