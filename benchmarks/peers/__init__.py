"""Other job queues on the same work as ours, by their published interfaces: `make bench-peers`.

One module for each, all alike. Its head (an inline script block, PEP 723) says what is installed into an environment of
its own; `peer.Peer` says which functions it has. To add one, write such a module and name it here.
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
"""Those whose tasks can have a limit by key; each is a `peer.LimitedPeer`."""
