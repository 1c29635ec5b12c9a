"""Starts, stops and kills a RabbitMQ node in one folder, and can start it again on the same data.

It runs the programs of the system package `rabbitmq-server` directly, because the package's wrapper scripts change the
user. Each node has its own name and ports, so that several nodes can run on one machine.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_SECONDS = 90.0
"""How many seconds a start may take on a busy machine. It usually takes 5 to 15."""

STOP_SECONDS = 30.0

CALL_SECONDS = 60.0
"""How many seconds a call of `rabbitmqctl` may take. Each call starts an Erlang virtual machine."""

COOKIE = ".erlang.cookie"
"""The file with the secret that the nodes of a cluster share."""

USER = PASSWORD = "guest"  # not secret, because the node listens on 127.0.0.1 only


def program(name: str = "rabbitmq-server") -> Path | None:
    """The path of one of RabbitMQ's programs, or `None` if RabbitMQ is not installed."""
    paths = sorted(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-*/sbin/{name}"))
    if paths and shutil.which("erl"):
        return paths[-1]
    return None


def free_port() -> int:
    """The number of a port that no process listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class RabbitMQ:
    """A node whose data, log and cookie are in the folder `home`. Only one process at a time may start or stop it."""

    home: Path
    port: int = field(default_factory=free_port)
    distribution_port: int = field(default_factory=free_port)
    epmd_port: int = field(default_factory=free_port)
    """The port of the node's own `epmd` (Erlang's daemon that finds nodes), which can be ended without harm to
    others."""
    _process: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def in_temporary_folder(cls) -> "RabbitMQ":
        """Make a node in a new folder. `remove` ends the node and deletes the folder."""
        return cls(Path(tempfile.mkdtemp(prefix="skipqueue-rabbitmq-")))

    @property
    def node(self) -> str:
        return f"skipqueue-{self.port}@localhost"

    @property
    def log(self) -> Path:
        return self.home / "output"

    def url(self, vhost: str = "/") -> str:
        """The URL of a virtual host, for Celery's setting `broker_url`."""
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{'' if vhost == '/' else vhost}"

    @property
    def environment(self) -> dict[str, str]:
        for name, text in (("plugins", "[].\n"), ("rabbitmq.conf", "loopback_users = none\n")):
            if not (self.home / name).exists():
                (self.home / name).write_text(text)
        return {
            **os.environ,
            "HOME": str(self.home),  # where Erlang looks for the cookie
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
        }

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the node on its data, and wait until it accepts connections."""
        server = program()
        if server is None:
            raise RuntimeError("RabbitMQ is not installed: it is in the package rabbitmq-server.")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [server],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C does not end it before its clients
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.accepts_connections():
            if not self.is_running or time.monotonic() > deadline:
                output = self.log.read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"RabbitMQ does not start. The end of its output:\n{output}")
            time.sleep(0.05)

    def accepts_connections(self) -> bool:
        """Whether the node is ready, which means that it answers a wrong AMQP header with the right one."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\x00\x00\x00\x00")
                return connection.recv(8).startswith(b"AMQP")
        except OSError:
            return False

    def join(self, other: "RabbitMQ") -> None:
        """Start this new node, and add it to the cluster of a running node, whose `epmd` it uses from then on."""
        self.epmd_port = other.epmd_port
        shutil.copy(other.home / COOKIE, self.home / COOKIE)
        self.start()
        self.control("stop_app")
        self.control("join_cluster", other.node)
        self.control("start_app")

    def stop(self) -> None:
        """End the node with SIGTERM, as an operator would."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the node at once, as a power cut would."""
        if self._process is not None:
            for process in reversed(_with_children(self._process.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()

    def control(self, *arguments: str) -> str:
        """Call `rabbitmqctl` with these arguments. Returns its output."""
        tool = program("rabbitmqctl")
        assert tool is not None
        done = subprocess.run(
            [tool, "--quiet", "--node", self.node, *arguments],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def add_vhost(self, name: str) -> str:
        """Create a virtual host. Returns its URL."""
        self.control("add_vhost", name)
        self.control("set_permissions", "--vhost", name, USER, ".*", ".*", ".*")
        return self.url(name)

    def remove(self) -> None:
        """End the node and its `epmd`, and delete the folder."""
        self.stop()
        for process in psutil.process_iter(["name", "environ"]):
            environ = process.info["environ"] or {}
            if process.info["name"] == "epmd" and environ.get("ERL_EPMD_PORT") == str(self.epmd_port):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def _with_children(pid: int) -> list[psutil.Process]:
    """The process and its child processes, because the server is a shell script that starts Erlang."""
    try:
        process = psutil.Process(pid)
        return [process, *(child for child in process.children(recursive=True) if child.name() != "epmd")]
    except psutil.NoSuchProcess:
        return []
