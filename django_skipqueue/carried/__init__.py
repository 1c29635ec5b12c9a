"""The other end of a relay: runs carried jobs in the processes of Celery's workers, and sends their outcomes back.

Celery calls `celery_task` with a job. `running` runs it in the pool that a worker of ours has. Its outcome goes to the
main process of Celery's worker, from a forked process by `return_path`. There `main_process` has `outcome_sender` send
it, and acknowledges the job's message once the broker has confirmed the outcome.
"""
