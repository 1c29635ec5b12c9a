"""Let Celery's workers run the jobs of some queues. A relay process hands the jobs over through a carrier.

A carrier is a way to run jobs elsewhere, here Celery's workers behind RabbitMQ. The process in `relay` claims jobs as
long as the `window` has room, hands them to the carrier, and settles the outcomes that come back. `rows` contains
the statements. `carrier` is the interface of carriers; `celery_carrier` and `rabbitmq` implement it.

In Celery's processes, Celery calls `task` with a job. `task` runs the job in the same kind of pool as a worker, and
`outcome_sender` sends the outcome. The Celery task ends once the broker has confirmed the outcome, and then Celery
acknowledges the job's message.

`console` shows operators which jobs each carrier has, and whether its relays and its broker can be reached.
"""
