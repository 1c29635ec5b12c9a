"""The jobs and workers of a shop on a busy evening, for pictures of the admin and tests of whole pages."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from django_skipqueue import Batch
from django_skipqueue.jobs.task_call import TaskCall
from django_skipqueue.models import Dependency, Job, JobBatch, Worker
from django_skipqueue.parts.batches.finish import finish_batches
from django_skipqueue.parts.schedules.timetable import timetable, upcoming
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall, JobSpec

from ...app.limit_rows import make_halted, make_limited
from ...app.rows import make_job, make_worker
from ...parts.schedules.rows import make_schedule

LAPTOP = {"width": 1440, "height": 900}
SITE = "/srv/shop/.venv/lib/python3.13/site-packages"
REFUSED_TRACEBACK = f"""Traceback (most recent call last):
  File "{SITE}/psp/transport.py", line 88, in post
    response = self.pool.urlopen("POST", address, body=body)
  File "{SITE}/urllib3/connectionpool.py", line 715, in urlopen
    httplib_response = self._make_request(conn, method, url)
  File "{SITE}/urllib3/connection.py", line 198, in _new_conn
    raise NewConnectionError(self, f"Failed to connect: {{error}}")
urllib3.exceptions.NewConnectionError: Failed to connect: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/payments/jobs.py", line 42, in capture_payment
    receipt = gateway.capture(payment.reference, payment.total)
  File "/srv/shop/payments/gateway.py", line 17, in capture
    return self.client.post("/captures", reference=reference, amount=str(total))
  File "{SITE}/psp/client.py", line 131, in post
    return self.transport.post(path, params)
  File "{SITE}/psp/transport.py", line 91, in post
    raise GatewayUnavailable(f"{{self.host}} cannot be reached") from error
psp.errors.GatewayUnavailable: psp.example.com cannot be reached
"""
"""The traceback of a payment for which the provider has refused the connection."""


def seconds_ago(seconds: float) -> timedelta:
    """Return a negative timedelta, which stands for the time this number of seconds ago."""
    return timedelta(seconds=-seconds)


def make_workers() -> list[Worker]:
    """Make four workers on three machines; the last worker sends no heartbeats any more."""
    all_fields: list[dict[str, Any]] = [
        {
            "name": "web-1/1",
            "hostname": "web-1",
            "pid": 4711,
            "heartbeat": seconds_ago(4),
            "memory_mb": 312,
            "jobs_done": 48_211,
        },
        {
            "name": "web-1/2",
            "hostname": "web-1",
            "pid": 4712,
            "heartbeat": seconds_ago(4),
            "memory_mb": 298,
            "jobs_done": 47_902,
        },
        {
            "name": "web-2/1",
            "hostname": "web-2",
            "pid": 871,
            "heartbeat": seconds_ago(31),
            "memory_mb": 204,
            "jobs_done": 9_310,
            "queues": ["emails", "default"],
        },
        {
            "name": "web-3/1",
            "hostname": "web-3",
            "pid": 52,
            "heartbeat": seconds_ago(700),
            "memory_mb": 1_877,
            "jobs_done": 310,
            "queues": ["reports"],
        },
    ]
    return [make_worker(started_at=seconds_ago(86_400 * 2), **fields_of_worker) for fields_of_worker in all_fields]


def iso_seconds_ago(seconds: float) -> str:
    """Return the time this number of seconds ago, as a string for JSON."""
    return (timezone.now() - timedelta(seconds=seconds)).isoformat()


def make_error(worker: Worker, attempt: int, *, seconds_ago: float, **fields: Any) -> dict[str, Any]:
    """Return an entry of `Job.errors`, which records a failed attempt."""
    return {
        "attempt": attempt,
        "worker": worker.name,
        "worker_id": worker.pk,
        "duration_ms": 214.9,
        "exception": "psp.errors.GatewayUnavailable",
        "message": "psp.example.com cannot be reached",
        "traceback": REFUSED_TRACEBACK,
        "at": iso_seconds_ago(seconds_ago),
    } | fields


def make_failed_job(worker: Worker, **fields: Any) -> Job:
    """Make a failed job: a payment that failed in three attempts, and in three more after a manual retry."""
    errors = [
        make_error(worker, 1, seconds_ago=4000, duration_ms=30_021.4),
        make_error(worker, 2, seconds_ago=3900, duration_ms=12_804.0),
        make_error(worker, 3, seconds_ago=3600),
        make_error(worker, 1, seconds_ago=560),
        make_error(worker, 2, seconds_ago=540),
        make_error(worker, 3, seconds_ago=500),
    ]
    retry = {
        "at": iso_seconds_ago(620),
        "verb": "retry",
        "by": "ann",
        "reason": "the PSP is back",
        "attempts": 3,
    }
    columns: dict[str, Any] = {
        "task": "payments.jobs.capture_payment",
        "kwargs": {"payment_id": 1187, "amount": "14.85"},
        "queue_name": "payments",
        "priority": 10,
        "attempts": 3,
        "max_attempts": 3,
        "errors": errors,
        "operations": [retry],
        "last_error": "GatewayUnavailable: psp.example.com cannot be reached",
        "locked_by": worker.pk,
        "enqueued_at": seconds_ago(4031),
        "run_after": seconds_ago(501),
        "started_at": seconds_ago(500.2),
        "finished_at": seconds_ago(500),
    }
    return make_job("failed", **(columns | fields))


def make_log(worker: Worker, attempt: int, *lines: tuple[float, str, str, str], seconds_ago: float) -> dict[str, Any]:
    """Return the log of an attempt. Each line has the seconds since the start, a level, a logger and a text."""
    return {
        "lease": attempt, "attempt": attempt, "worker": worker.name, "started": iso_seconds_ago(seconds_ago),
        "dropped": 0, "lines": [[int(seconds * 1000), *line] for seconds, *line in lines],
    }  # fmt: skip


def make_running_job(worker: Worker) -> Job:
    """Make a running job: a long report, in its second attempt."""
    return make_job(
        "running", task="reports.jobs.build_monthly_report", args=[2026, 11], kwargs={"currency": "EUR"},
        queue_name="reports", attempts=2, max_attempts=5, locked_by=worker.pk, enqueued_at=seconds_ago(700),
        run_after=seconds_ago(109), started_at=seconds_ago(108), locked_at=seconds_ago(108),
        last_error="TimeoutError: the database of figures did not answer",
        errors=[make_error(worker, 1, seconds_ago=180, duration_ms=31_000, exception="builtins.TimeoutError",
                      message="the database of figures did not answer", traceback="")],
        lease=2, progress={"lease": 2, "value": 0.62, "text": "18,600 of 30,000 orders", "at": iso_seconds_ago(1)},
        logs=[make_log(worker, 1, (0.2, "INFO", "reports.jobs", "30,000 orders in November"),
                  (31.0, "WARNING", "reports.jobs", "the database of figures does not answer"), seconds_ago=211),
              make_log(worker, 2, (0.1, "INFO", "reports.jobs", "30,000 orders in November"),
                  (64.0, "INFO", "", "the figures of week 46 are complete"), seconds_ago=108)],
    )  # fmt: skip


def make_jammed(worker: Worker) -> None:
    """Make jobs that hang in all slots of a worker."""
    for minutes in (12, 11, 9, 7):
        make_job(
            "running", task="crm.jobs.push_to_crm", kwargs={"customer_id": 4000 + minutes}, locked_by=worker.pk,
            locked_at=seconds_ago(60 * minutes), started_at=seconds_ago(60 * minutes),
            run_after=seconds_ago(60 * minutes), enqueued_at=seconds_ago(60 * minutes),
        )  # fmt: skip


def make_jobs(workers: list[Worker]) -> list[Job]:
    """Make the jobs of a busy shop, the newest last: most are completed, some have problems."""
    first, second, *_ = (str(worker.pk) for worker in workers)
    completed: list[tuple[str, dict[str, Any], float]] = [
        ("payments.jobs.send_receipt", {"payment_id": 1171, "email": "mia@example.com"}, 58),
        ("search.jobs.index_product", {"product_id": 88, "fields": ["title", "price"]}, 52),
        ("payments.jobs.send_receipt", {"payment_id": 1172, "email": "noah@example.com"}, 47),
        ("shipping.jobs.print_label", {"order_id": 5120, "carrier": "DHL"}, 44),
        ("accounts.jobs.send_password_reset", {"user_id": 310, "token": "f3b1c2d4"}, 41),
    ]
    jobs = [
        make_job("completed", task=task, kwargs=kwargs, enqueued_at=seconds_ago(age + 1),
                 started_at=seconds_ago(age + 0.2), finished_at=seconds_ago(age), locked_by=first)
        for task, kwargs, age in completed
    ]  # fmt: skip
    jobs += [
        make_job("scheduled", task="payments.jobs.send_receipt", attempts=2 + number % 2, queue_name="emails",
                 kwargs={"payment_id": 1173 + number, "email": "jo@example.com"},
                 run_after=seconds_ago(-40 - 25 * number),
                 last_error="SMTPServerDisconnected: Connection unexpectedly closed")
        for number in range(7)
    ]  # fmt: skip
    jobs += [
        make_job("discarded", task="accounts.jobs.send_password_reset", kwargs={"user_id": 12, "token": "a1b2c3d4"},
                 finished_at=seconds_ago(33), last_error="AddressBlocked: this address has unsubscribed"),
        make_job("scheduled", task="reports.jobs.build_monthly_report", kwargs={"month": "2026-11"},
                 queue_name="reports", run_after=seconds_ago(-8 * 3600)),
        make_failed_job(workers[0]),
        make_job("running", task="reports.jobs.export_orders", kwargs={"year": 2025, "format": "xlsx"},
                 queue_name="reports", locked_by=second, locked_at=seconds_ago(764), started_at=seconds_ago(764),
                 progress={"lease": 1, "value": 0.4, "text": "40 of 100", "at": iso_seconds_ago(1)}, lease=1),
        make_job("running", task="search.jobs.rebuild_index", kwargs={"index": "products"}, locked_by=first,
                 locked_at=seconds_ago(93), started_at=seconds_ago(93)),
        *(make_job("queued", task="shipping.jobs.print_label", kwargs={"order_id": 5121 + number, "carrier": "DHL"},
                   run_after=seconds_ago(6 - number)) for number in range(3)),
    ]  # fmt: skip
    return jobs


def make_limits() -> None:
    """Make jobs that wait for limits of two jobs per account, and a sequence that has halted."""
    for number, (account, minutes) in enumerate((("hamburg", 9.0), ("lisbon", 4.0), ("oslo", 1.5))):
        make_limited(
            f'limit:crm.jobs.push_to_crm account="{account}"', held=2, waiting=7 - 2 * number, minutes=minutes,
            task="crm.jobs.push_to_crm", kwargs={"account": account}, queue_name="crm",
        )  # fmt: skip
    make_halted(
        'sequence:ledger.jobs.write_statement customer_id=1042', minutes=26, waiting=3, queue_name="payments",
        task="ledger.jobs.write_statement", kwargs={"customer_id": 1042},
    )  # fmt: skip


def make_batches() -> Batch:
    """Make a running batch, which reads the prices and pictures of a supplier, and a failed batch. Return the first."""
    with Batch(name="mailing", on_failure=_make_call("crm.jobs.warn")) as failed:
        sent, refused = failed.add(*[_make_call("crm.jobs.send_newsletter") for _ in range(2)])
    _set_status("completed", sent, finished_at=seconds_ago(5_000))
    _set_status(
        "failed",
        refused,
        finished_at=seconds_ago(4_900),
        last_error="SMTPServerDisconnected: Connection unexpectedly closed",
    )
    finish_batches(Store.default(), [failed.id])
    JobBatch.objects.filter(pk=failed.id).update(
        created_at=Now() + seconds_ago(5_400), finished_at=Now() + seconds_ago(4_890)
    )
    failed.jobs.queued().cancel()
    publish, warn = _make_call("shop.jobs.publish_prices"), _make_call("shop.jobs.warn_buyers")
    with Batch(name="prices of Nordwind", on_success=publish, on_failure=warn) as batch:
        fetched = _make_call("catalogue.jobs.fetch_feed").defer()
        parts = [_make_call("catalogue.jobs.read_prices").after(fetched).defer() for _ in range(3)]
        _make_call("search.jobs.index_products").after(*parts).defer()
        with Batch(name="pictures", on_finish=_make_call("shop.jobs.clear_cache")) as pictures:
            resized = pictures.add(*[_make_call("media.jobs.resize_image") for _ in range(24)])
    _set_status("completed", fetched, *resized[:17], finished_at=seconds_ago(20))
    _set_status("completed", parts[0], finished_at=seconds_ago(12))
    _set_status("running", parts[1], *resized[17:19], locked_at=seconds_ago(10), started_at=seconds_ago(10))
    _set_status("queued", parts[2])
    JobBatch.objects.filter(pk__in=[batch.id, pictures.id]).update(created_at=Now() + seconds_ago(94))
    return batch


def _make_call(task: str) -> TaskCall:
    return TaskCall(JobSpec(task), EncodedCall("[]", "{}"))


def _set_status(status: str, *jobs: Job, **times: Any) -> None:
    """Set the status and the times of jobs. A timedelta counts from now."""
    ids = [job.pk for job in jobs]
    fields = {name: Now() + value if isinstance(value, timedelta) else value for name, value in times.items()}
    Job.objects.filter(pk__in=ids).update(status=status, held=None, gate=None, attempts=1, lease=2, **fields)
    Dependency.objects.filter(job_id__in=ids).update(is_met=True)


def make_schedules() -> None:
    """Make four schedules; one of them is late, and one is paused."""
    last = make_job("completed", task="shop.jobs.summary", finished_at=seconds_ago(3600 * 5))
    make_schedule(
        "daily summary", due=-_seconds_until_nine(), last_job_id=last.pk, last_run_at=Now() - timedelta(hours=5),
        source="code", cron="0 9 * * mon-fri", timezone="Europe/Berlin", digest="d", task="shop.jobs.summary",
    )  # fmt: skip
    make_schedule("exchange rates", due=-230, interval=timedelta(minutes=10), source="settings", task="shop.jobs.rates")
    make_schedule("import", due=700, interval=timedelta(minutes=15), task="catalogue.jobs.import_all")
    make_schedule("clean up", paused_at=Now(), paused_by="ann", cron="*/10 * * * *", task="shop.jobs.clean_up")


def _seconds_until_nine() -> float:
    """Return the seconds until nine o'clock in Berlin on the next working day."""
    now = timezone.now()
    table = timetable(cron="0 9 * * mon-fri", interval=None, zone="Europe/Berlin")
    next_time = next(time for time in upcoming(table, now, 2) if time > now)
    return (next_time - now).total_seconds()
