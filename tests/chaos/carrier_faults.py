"""The faults that only the scenario `relay` has: faults of the broker, and faults of Celery's worker.

Invariant: when a function that causes a fault returns, everything works again or is being started again.
"""

import random
from collections.abc import Sequence

from .carried import (
    BROKER,
    BROKER_KILLED,
    BROKER_STOPPED,
    CELERY,
    CELERY_STOPPED,
    CHILD_KILLED,
    CONNECTIONS_CUT,
    CONNECTIONS_STALLED,
    HALF_OPEN,
    MAIN_KILLED,
    Broker,
    CarriedMachine,
    CeleryWorker,
)
from .faults import Stroke
from .machines import Machine
from .stage import Stage

SECONDS_OUT_OF_REACH = 12.0
"""Seconds for which a connection transmits no byte: longer than two heartbeats of the broker."""


class CarrierFaults:
    """The public methods are strokes, functions that cause a fault. Their argument `machine` is one with a relay."""

    def __init__(self, broker: Broker, celery: CeleryWorker, relays: Sequence[CarriedMachine]) -> None:
        self._broker = broker
        self._celery = celery
        self._clients = [celery, *relays]

    @property
    def of_celery(self) -> list[Stroke]:
        """The strokes against Celery's processes."""
        return [self.kill_child, self.kill_main, self.kill_child, self.restart_celery]

    @property
    def of_broker(self) -> list[Stroke]:
        """The strokes against the broker, and against connections to it."""
        return [
            self.stop_broker,
            self.kill_broker,
            self.cut_celery,
            self.cut_any,
            self.stall_celery,
            self.stall_any,
            self.lose_relay,
        ]

    def kill_child(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """SIGKILL a few of the processes of Celery's pool, one after the other."""
        for _ in range(rng.randint(1, 3)):
            with stage.fault(CHILD_KILLED, CELERY, slows=False):
                self._celery.kill_worker(rng.randrange(100))
                stage.wait(rng.uniform(0, 0.3))

    def kill_main(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """SIGKILL Celery's main process; its children are orphans until it is started again."""
        with stage.fault(MAIN_KILLED, CELERY):
            self._celery.kill_supervisor()
            stage.wait(rng.uniform(2, 3))

    def restart_celery(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Stop Celery's worker by a warm shutdown, and start it again."""
        with stage.fault(CELERY_STOPPED, CELERY):
            self._celery.stop()
            self._celery.start()

    def stop_broker(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Run `rabbitmqctl stop_app`, and `start_app` after a moment."""
        with stage.fault(BROKER_STOPPED, BROKER):
            self._broker.stop_application()
            stage.wait(rng.uniform(0, 2))
            self._broker.start_application()

    def kill_broker(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """SIGKILL the node, and start it again after a moment."""
        with stage.fault(BROKER_KILLED, BROKER):
            self._broker.node.kill()
            stage.wait(rng.uniform(0, 2))
            self._broker.node.start()

    def cut_any(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Reset the connections of a relay or of Celery's worker to the broker, and refuse new ones for a moment."""
        self._cut(stage, rng.choice(self._clients), rng)

    def cut_celery(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Reset the connections of Celery's worker to the broker, and refuse new ones for a moment."""
        self._cut(stage, self._celery, rng)

    def stall_any(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Hold back all bytes and errors between a relay and the broker."""
        self._stall(stage, rng.choice(self._clients[1:]), rng)

    def stall_celery(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Hold back all bytes and errors between Celery's worker and the broker."""
        self._stall(stage, self._celery, rng)

    def lose_relay(self, stage: Stage, machine: Machine, rng: random.Random) -> None:
        """Close the connection of a relay only on the broker's side, so that the relay does not notice that."""
        with stage.fault(HALF_OPEN, BROKER):
            rng.choice(self._clients[1:]).broker.lose_server()
            stage.wait(SECONDS_OUT_OF_REACH)

    def _cut(self, stage: Stage, machine: CarriedMachine, rng: random.Random) -> None:
        with stage.fault(CONNECTIONS_CUT, BROKER):
            machine.broker.refuse()
            machine.broker.cut()
            stage.wait(rng.uniform(0, 2))
            machine.broker.accept()

    def _stall(self, stage: Stage, machine: CarriedMachine, rng: random.Random) -> None:
        with stage.fault(CONNECTIONS_STALLED, BROKER):
            machine.broker.stall()
            stage.wait(rng.choice((3.0, SECONDS_OUT_OF_REACH)))
            machine.broker.flow()
