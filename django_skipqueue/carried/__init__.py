"""The other end of a relay: runs carried jobs in the processes of Celery's workers, and sends their outcomes back.

Celery calls `celery_task` with a job. `running` runs it in the pool that a worker of ours has, and `outcome_sender`
sends its outcome. Celery acknowledges the job's message when the task ends, once the broker has confirmed the outcome.
"""
