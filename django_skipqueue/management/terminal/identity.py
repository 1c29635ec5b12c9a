"""Who uses the command line, for the rows of jobs and the log."""

import getpass
import os
import socket


def operator() -> str:
    """The user of the operating system, and the machine: `ann@web-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
