"""The machines of the scenario `relay`: relays, a worker of Celery, and the broker between them.

Invariant: each machine reaches the broker and PostgreSQL only through its own two proxies.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from scripts.embedded_rabbitmq import RabbitMQ

from .cluster import Cluster
from .machines import Machine
from .proxy import Proxy

CARRIER = "celery"
CELERY_QUEUE = "chaos"

WINDOW = 300
"""The setting WINDOW: how many jobs Celery and RabbitMQ hold at most, beside one batch of each relay."""

CHILDREN = 8
"""Processes in which Celery's worker runs jobs."""

RABBITMQ_CONF = "loopback_users = none\nheartbeat = 5\n"
"""With `heartbeat`, the broker and its clients send heartbeats, and so notice a lost connection within seconds."""

BROKER = "RabbitMQ"
"""The target of faults that hit the broker, or a connection to it."""

CELERY = "Celery"

CHILD_KILLED, MAIN_KILLED, CELERY_STOPPED = "Celery's child killed", "Celery's main process killed", "Celery stopped"
BROKER_STOPPED, BROKER_KILLED = "RabbitMQ stopped", "RabbitMQ killed"
CONNECTIONS_CUT, HALF_OPEN, CONNECTIONS_STALLED = "AMQP connections cut", "AMQP half-open", "AMQP stalled"

REDELIVERING = {CHILD_KILLED, MAIN_KILLED, CELERY_STOPPED, BROKER_STOPPED, BROKER_KILLED, CONNECTIONS_CUT, HALF_OPEN}
"""The faults after which the broker delivers jobs again."""


class CarriedMachine(Machine):
    """A machine with the settings of the scenario `relay`, and with a proxy between it and the broker."""

    def __init__(self, name: str, cluster: Cluster, folder: Path, broker: RabbitMQ) -> None:
        super().__init__(name, cluster, folder)
        self.broker = Proxy(broker.port)
        self._url = broker.url()
        self._broker_port = broker.port

    @property
    def _settings(self) -> dict[str, str]:
        url = self._url.replace(f":{self._broker_port}/", f":{self.broker.port}/")
        return {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings_of_relay", "CHAOS_BROKER": url}

    def boot(self) -> None:
        """See `Machine.boot`."""
        self.broker.start()
        super().boot()

    def end(self) -> None:
        """See `Machine.end`."""
        super().end()
        if self._process is not None:
            self.broker.stop()


class Relays(CarriedMachine):
    """One `runrelay` with one relay process."""

    @property
    def _command(self) -> list[str]:
        return ["django", "runrelay", "--name", self.name]


class CeleryWorker(CarriedMachine):
    """A worker of Celery with the pool `prefork`."""

    @property
    def _command(self) -> list[str]:
        options = ["-c", str(CHILDREN), "-Q", CELERY_QUEUE, "-l", "warning", "--without-gossip", "--without-mingle"]
        return ["celery", "-A", "tests.chaos.celery_app", "worker", *options, "-n", f"{self.name}@chaos"]

    @property
    def _settings(self) -> dict[str, str]:
        return {**super()._settings, "C_FORCE_ROOT": "1"}

    def _clear_away(self) -> None:
        """End the children of a main process that was killed, as `systemd` does before it starts a service again."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Broker:
    """A RabbitMQ in a folder of its own."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        (home / "rabbitmq.conf").write_text(RABBITMQ_CONF)
        self.node = RabbitMQ(home)

    def stop_application(self) -> None:
        """Stop RabbitMQ, but not the Erlang node: all connections are closed in order."""
        self.node.control("stop_app")

    def start_application(self) -> None:
        """Start RabbitMQ in the node again, and wait until it accepts connections."""
        self.node.control("start_app")
        deadline = time.monotonic() + 60
        while not self.node.accepts_connections():
            if time.monotonic() > deadline:
                raise TimeoutError("RabbitMQ took no connection within 60 s.")
            time.sleep(0.05)

    def count_messages(self) -> dict[str, int]:
        """The number of messages in each queue, delivered messages included."""
        lines = self.node.control("list_queues", "--no-table-headers", "name", "messages").splitlines()
        names_and_counts = (line.rsplit(maxsplit=1) for line in lines if line.strip())
        return {name: int(count) for name, count in names_and_counts if name.startswith(("skipqueue.", CELERY_QUEUE))}
