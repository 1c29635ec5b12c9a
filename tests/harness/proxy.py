"""A TCP proxy in front of PostgreSQL. Like a bad network, it cuts, stalls or refuses connections."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from django.db import connections

SIZE = 65_536

Connect = Callable[[], socket.socket]


class Proxy:
    """Listens on its own port. All methods may be called at any time, from any thread."""

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect or connect_to_database
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        """The number of connections that the proxy has accepted."""
        self._refusing = False
        self._stalled: frozenset[str] = frozenset()
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by which Django reaches the database through the proxy."""
        return {"HOST": "127.0.0.1", "PORT": self.port}

    def cut(self) -> None:
        """End every connection, as a restart of the server does."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.end()

    def stall(self, *directions: str) -> None:
        """Hold back all data and errors on their way to the `server` or the `client`; without an argument, to both."""
        self._stalled = frozenset(directions or ("server", "client"))

    def flow(self) -> None:
        """Pass on all data again, also data that was held back."""
        self._stalled = frozenset()

    def refuse(self, refusing: bool = True) -> None:
        """End every new connection at once."""
        self._refusing = refusing

    def close(self) -> None:
        """End all connections and the proxy."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def stalls(self, direction: str) -> bool:
        """Whether data for this side is held back."""
        return direction in self._stalled

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            link = Link(self, client, self._connect())
            with self._lock:
                self._links.add(link)
            self.accepted += 1
            threading.Thread(target=link.run, daemon=True).start()


class Link:
    """One connection: passes data on between the sockets of the client and of the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets_to = {"server": (client, server), "client": (server, client)}

    def run(self) -> None:
        """Pass data on until either side closes its socket."""
        with contextlib.suppress(OSError, ValueError):
            while self._pass_on():
                pass
        self.end()

    def end(self) -> None:
        """Close both sockets."""
        for side, _ in self._sockets_to.values():
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _pass_on(self) -> bool:
        flowing = {name: pair for name, pair in self._sockets_to.items() if not self._proxy.stalls(name)}
        ready, _, _ = select.select([source for source, _ in flowing.values()], [], [], 0.02)
        for name, (source, target) in flowing.items():
            if source in ready and not self._proxy.stalls(name):
                data = source.recv(SIZE)
                if not data:
                    return False
                target.sendall(data)
        return True


def connect_to_database() -> socket.socket:
    """Open a socket to the server that the tests use."""
    info = connections["default"].get_connection_params()
    host, port = str(info.get("host") or "/var/run/postgresql"), int(info.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    unix_socket = socket.socket(socket.AF_UNIX)
    unix_socket.connect(f"{host}/.s.PGSQL.{port}")
    return unix_socket
