"""Relays: processes that give the jobs of some queues to a carrier, such as Celery's workers behind RabbitMQ.

`relay` is such a process. It claims as many jobs as the `window` has room for, and settles the outcomes that come back.
`rows` has the statements. `carrier` is the seam to a carrier; `celery_carrier` and `rabbitmq` implement it.

In its processes, Celery calls `task` with a job. `task` runs the job in a pool as workers have it, and `outcome_sender`
sends the outcome. The task ends once the broker has confirmed the outcome. Then Celery acknowledges the job's message.

`console` tells operators what each carrier holds, and whether its relays and its broker can be reached.
"""
