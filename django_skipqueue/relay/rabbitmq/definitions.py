"""The topology of a carrier as definitions that RabbitMQ imports, for whoever declares it instead of relays. Pure."""

import re
from collections.abc import Iterable
from typing import Any

from . import topology


def definitions(carried: Iterable[str], homes: Iterable[str], *, vhost: str, user: str) -> dict[str, Any]:
    """What `rabbitmqctl import_definitions` takes. carried: Celery's queues."""
    carried, homes = list(carried), list(homes)
    queues = {name: needed for home in homes for name, needed in topology.queues_of(carried, home).items()}
    bindings = {binding[:2]: binding for home in homes for binding in topology.bindings_of(home)}
    return {
        "exchanges": [
            {
                "name": name,
                "vhost": vhost,
                "type": kind,
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": arguments,
            }
            for name, (kind, arguments) in topology.EXCHANGES.items()
        ],
        "queues": [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": dict(needed)}
            for name, needed in queues.items()
        ],
        "bindings": [
            {
                "source": exchange,
                "vhost": vhost,
                "destination": queue,
                "destination_type": "queue",
                "routing_key": "",
                "arguments": match,
            }
            for exchange, queue, match in bindings.values()
        ],
        "permissions": [
            {
                "user": user,
                "vhost": vhost,
                "configure": "^$",
                "write": r"^amq\.default$",
                "read": f"^({'|'.join(re.escape(name) for name in queues if name != topology.FOREIGN)})$",
            }
        ],
    }
