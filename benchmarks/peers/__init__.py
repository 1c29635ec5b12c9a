"""Other job queues (peers) measured with the same work as ours, by their public interfaces: `make bench-peers`.

There is one module for each peer. Its head (an inline script block, PEP 723) says which packages are installed into its
environment, and `peer.Peer` lists the functions that it must have. To add a peer, write a module and name it here.
"""

PEERS = (
    "skipqueue",
    "procrastinate",
    "django_tasks_db",
    "dj_queue",
    "django_ox",
    "steady_queue",
    "pgqueuer",
    "celery",
    "celery_rabbitmq",
    "carried",
    "graphile_worker",
)

PEERS_WITH_LIMITS = ("skipqueue", "dj_queue", "steady_queue")
"""The peers whose tasks can have a limit by key. Each is a `peer.LimitedPeer`."""

PEERS_WITH_STEPS = ("skipqueue", "dbos")
"""The peers that record the steps of a workflow. Each is a `peer.SteppedPeer`."""
