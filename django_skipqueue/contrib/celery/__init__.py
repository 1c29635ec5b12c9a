"""Relays: processes that give the jobs of some queues to a carrier, such as Celery's workers behind RabbitMQ.

`relay` is one. Its `exchange` claims what the `window` has room for, and settles the outcomes that come back. The seam
is `carrier`, and `celery_carrier` stands behind it. The other end, in Celery's processes, is the room `carried`.
"""
