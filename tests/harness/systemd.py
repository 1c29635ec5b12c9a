"""A service manager that receives notifications of its services as systemd does."""

import socket

from ..app.waiting import DEADLINE


class Manager:
    """Listens on the socket to which services send their notifications."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(DEADLINE)

    def receive(self) -> list[str]:
        """Wait for the next datagram. Returns its lines."""
        return self._socket.recv(4096).decode().splitlines()

    def wait_for(self, line: str) -> None:
        while line not in self.receive():
            pass

    def is_silent_for(self, seconds: float) -> bool:
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(4096)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(DEADLINE)
        return False

    def close(self) -> None:
        self._socket.close()
