"""A TCP proxy in front of a server. It cuts, stalls, slows down or loses all connections, or those of one process.

Invariant: the proxy does not change the bytes that it transmits. Its event loop runs in a thread of its own; other
threads call the public methods.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import psutil

RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing sends a reset, as a restarted machine does

TOO_MANY = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0"
FULL = b"E" + struct.pack("!i", len(TOO_MANY) + 4) + TOO_MANY
"""The response of PostgreSQL to a client that connects when all connections are taken."""

FIRST_MESSAGES = 6
"""The number of messages that a client sends to connect: the startup, and the first settings of its session."""


class Link:
    """A connection from a client, and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.client_port: int = client.get_extra_info("peername")[1]
        self.flowing = asyncio.Event()
        self.is_half_open = False
        """Whether one end is closed and the other end does not know it."""
        self.delay = 0.0
        """Seconds at most by which each of the first messages is delayed."""


class Proxy:
    """Listens on a port of this machine, for a server behind a Unix socket, or another port of this machine."""

    def __init__(self, server: str | int) -> None:
        self._server = server
        self._links: set[Link] = set()
        self._flowing = asyncio.Event()
        self._blocked_pid: int | None = None
        """The id of a process that the proxy lets send and receive nothing."""
        self._says_it_is_full = False
        """Whether the proxy tells the blocked process that no connection is free; otherwise it does not respond."""
        self._delay = 0.0
        self._rate = float("inf")
        self._loop = asyncio.new_event_loop()
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.port = 0

    def start(self) -> None:
        """Start to listen, which sets `port`."""
        self._thread.start()
        self._do(self._listen())
        self._call_in_loop(self._flowing.set)

    def stop(self) -> None:
        """Close everything."""
        self.refuse()
        self._do(self._end())
        self._call_in_loop(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Reset all connections at both ends."""
        self._do(self._break(client=True, server=True))

    def refuse(self) -> None:
        """Refuse new connections."""
        self._do(self._close())

    def accept(self) -> None:
        """Accept new connections again."""
        self._do(self._listen())

    def stall(self) -> None:
        """Hold back all bytes and errors, in both directions."""
        self._call_in_loop(self._flowing.clear)

    def flow(self) -> None:
        """Transmit bytes again, also the bytes that were held back."""
        self._call_in_loop(self._flowing.set)

    def stall_process(self, pid: int) -> None:
        """Hold back all bytes on the connections of this process."""
        self._blocked_pid, self._says_it_is_full = pid, False
        self._do(self._block_process(pid))

    def be_full_for(self, pid: int) -> None:
        """Cut the connections of this process, and tell it that no connection is free."""
        self._blocked_pid, self._says_it_is_full = pid, True
        self._do(self._block_process(pid))

    def let_in(self) -> None:
        """Serve every process again."""
        self._blocked_pid = None
        self._do(self._let_all_flow())

    def delay_connects(self, seconds: float) -> None:
        """Delay each of the first messages of new connections by at most this number of seconds; 0 ends the delays."""
        self._delay = seconds

    def limit(self, bytes_per_second: float) -> None:
        """Transmit at most this number of bytes a second in each direction of each connection."""
        self._rate = bytes_per_second

    def lose_server(self) -> None:
        """Close the server's ends of all connections (half-open): clients do not notice. New connections work."""
        self._do(self._break(client=False, server=True))

    def lose_clients(self) -> None:
        """Close the clients' ends of all connections (half-open), without a sign to the server until `tell_server`."""
        self._do(self._break(client=True, server=False))

    def tell_server(self) -> None:
        """Close the server's ends too, as TCP keepalives would, so that the server does not run out of connections."""
        self._do(self._break(client=False, server=True, is_half_open=True))

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call_in_loop(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    # In the thread of the loop

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        is_blocked = self._blocked_pid is not None and client.get_extra_info("peername")[1] in _ports(self._blocked_pid)
        if is_blocked and self._says_it_is_full:
            await self._turn_away(reader, client)
            return
        try:
            from_server, server = await self._connect()
        except OSError:
            client.close()
            return
        link = Link(client, server)
        link.delay = self._delay
        if not is_blocked:
            link.flowing.set()
        self._links.add(link)
        await asyncio.gather(self._pump(link, reader, server), self._pump(link, from_server, client))
        self._links.discard(link)
        client.close()
        server.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, int):
            return await asyncio.open_connection("127.0.0.1", self._server)
        return await asyncio.open_unix_connection(self._server)

    async def _turn_away(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(65_536)
            client.write(FULL)
            await client.drain()
        client.close()

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes from end to end until one closes. Then close the other one unless the link is half-open."""
        messages, seconds_to_wait = 0, 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                await link.flowing.wait()
                messages += 1
                if link.delay and writer is link.server and messages <= FIRST_MESSAGES:
                    await asyncio.sleep(random.uniform(0, link.delay))
                seconds_to_wait += len(data) / self._rate
                if seconds_to_wait > 0.01:
                    await asyncio.sleep(seconds_to_wait)
                    seconds_to_wait = 0.0
                if not link.is_half_open:
                    writer.write(data)
                    await writer.drain()
        if not link.is_half_open:
            writer.close()

    async def _block_process(self, pid: int) -> None:
        ports = _ports(pid)
        for link in [link for link in self._links if link.client_port in ports and not link.is_half_open]:
            if self._says_it_is_full:
                link.client.transport.abort()
                link.server.transport.abort()
            else:
                link.flowing.clear()

    async def _let_all_flow(self) -> None:
        for link in self._links:
            link.flowing.set()

    async def _break(self, *, client: bool, server: bool, is_half_open: bool = False) -> None:
        for link in [link for link in self._links if link.is_half_open == is_half_open]:
            link.is_half_open = True
            for end in [link.client] * client + [link.server] * server:
                with contextlib.suppress(OSError):
                    if end.get_extra_info("socket").family != socket.AF_UNIX:
                        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.transport.abort()


def _ports(pid: int) -> set[int]:
    """The local ports of the TCP connections of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp")}
    return set()
