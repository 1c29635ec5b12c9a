"""Relays: processes that give the jobs of some queues to a carrier, such as Celery's workers behind RabbitMQ.

`relay` is one. It claims what the `window` has room for, and settles the outcomes that come back; what it writes into
rows is in `rows`. The seam is `carrier`, and `celery_carrier` and `rabbitmq` are behind it.

The other end is in Celery's processes. Celery calls `task` with a job. `task` runs it in the pool that a worker of ours
has, and `outcome_sender` sends its outcome. Celery acknowledges the job's message when the task ends, once the broker
has confirmed the outcome.

`console` says to operators what each carrier holds, and whether its relays and its broker are there.
"""
