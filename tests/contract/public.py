"""The public names of the package: modules from which users import, names in them, and members of classes.

A name that is neither in this file nor in the `__all__` of one of these modules is private.
"""

Members = str | None
"""The names of the public members of a class; `None` means all members whose names begin without an underscore."""

VERBS = "retry discard cancel run_now postpone reschedule change_queue change_priority run_again"
STEP_VERBS = "signal asignal retry_from run_again_from"
FILTERS = "scheduled blocked queued running completed failed discarded unfinished"

PUBLIC: dict[str, dict[str, Members]] = {
    "django_skipqueue": {
        "Batch": "__init__ __enter__ name database id row jobs progress aprogress add aadd of get",
        "Chain": "defer adefer",
        "JobContext": "job_id attempt max_attempts queue_name worker database lease is_atomic job aget_job batch "
        "results is_last_attempt cancelled stopping current progress log complete "
        "step sleep wait run run_all each astep asleep await_signal arun arun_all aeach",
        "Task": "name function is_async options policy timeout atomic redact takes_context __call__ defer adefer "
        "defer_many adefer_many using s result_of",
        "TaskCall": "defer adefer after",
    },
    "django_skipqueue.admin": dict.fromkeys(
        ("ArchivedJobAdmin", "BatchAdmin", "JobAdmin", "QueueAdmin", "ScheduleAdmin", "WorkerAdmin"), ""
    ),
    "django_skipqueue.backend": {
        "SkipQueueBackend": "supports_defer supports_async_task supports_get_result supports_priority"
    },
    "django_skipqueue.values.backoff": {"constant": None, "exponential": None, "linear": None},
    "django_skipqueue.exceptions": {},
    "django_skipqueue.events.logging": {"JobContextFilter": "", "JsonFormatter": ""},
    "django_skipqueue.console.metrics.page": {"view": None},
    "django_skipqueue.models": {
        "ArchivedJob": "handle current_progress worker_name",
        "Job": f"created replaced handle current_progress worker_name {VERBS} {STEP_VERBS} complete fail release "
        "heartbeat",
        "Job.objects": f"enqueue claim by_handle {FILTERS} {VERBS} {STEP_VERBS}",
        "Queue.objects": "paused",
        "Worker.objects": "live",
    },
    "django_skipqueue.integrations.opentelemetry": {"instrument": None},
    "django_skipqueue.integrations.prometheus": {"SkipqueueCollector": "describe collect"},
    "django_skipqueue.integrations.pytest": dict.fromkeys(("deferred_jobs", "inline_jobs", "kill_after", "run_jobs")),
    "django_skipqueue.routers": {"QueueRouter": None},
    "django_skipqueue.worker.by_hand": {"run": None},
    "django_skipqueue.integrations.sentry": {"SkipqueueIntegration": "__init__ identifier"},
    "django_skipqueue.testing": {"CapturedJobs": "__enter__ __aenter__ __getitem__ __len__", "InlineJobs": ""},
    "django_skipqueue.events.tracing": {
        "use": None,
        "Tracer": None,
        "TracedInsert": "given size database metadata job_ids",
    },
}
"""The public names of each module, in addition to its `__all__`, with their members. All exceptions are public."""
