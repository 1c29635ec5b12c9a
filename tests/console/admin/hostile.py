"""Jobs and workers whose texts attack the browser of an operator: scripts, templates, control characters."""

from typing import Any

from django_skipqueue.models import Job

from ...app.rows import STATUSES, make_job, make_worker

RTL = "\N{RIGHT-TO-LEFT OVERRIDE}"
TEXTS = {
    "a script": "<script>alert('skipqueue')</script>",
    "an attribute": "\"><img src=x onerror=alert('skipqueue')>' onmouseover='alert(1)",
    "a template": "{{ request.user.password }}{% load x %}{{ 7|add:7 }}${7*7}",
    "the end of a script": "</script><script>alert('skipqueue')</script><!--",
    "a style": "</title></style><style>body{display:none}</style><base href='//evil.example/'>",
    "an address": "javascript:alert('skipqueue')",
    "marks": f"{RTL}gnissecorp{RTL}\N{RIGHT-TO-LEFT ISOLATE}\N{ARABIC LETTER MARK}abc",
    "escapes": "\x1b[31mred\x1b[0m\x1b]0;title\x07\x08\r\nforged",
    "%": "%s%(x)s{x}{0.__class__}%d%%",
}
LENGTH_OF_LONG_TEXT = 1_000_000


def make_hostile_jobs(text: str, *statuses: str, within_an_index: bool = True) -> dict[str, Job]:
    """Make a worker, and a job in each of these statuses (default: all), with this text in every column of text.

    within_an_index: whether the text is short enough for the names of tasks and queues.
    """
    short_text = text if within_an_index else text[:300]
    worker = make_worker(name=text, hostname=text, queues=[text])
    error = dict.fromkeys(("worker", "worker_id", "exception", "message", "traceback", "at"), text)
    jobs = {}
    for number, status in enumerate(statuses or STATUSES):
        values: dict[str, Any] = {
            "task": short_text,
            "queue_name": short_text,
            "args": [text, {text: text}],
            "kwargs": {text: [text], "a": text},
            "result": {text: text},
            "last_error": text,
            "errors": [error | {"attempt": 1}, error | {"attempt": text}],
            "unique_key": f"{short_text}{number}",
            "metadata": {text: text},
        }
        jobs[status] = make_job(status, locked_by=str(worker.pk) if status == "running" else text, **values)
    return jobs


def addresses(jobs: dict[str, Job], *statuses: str) -> list[str]:
    """Return the addresses, below `django_skipqueue/`, of all pages that show the jobs in these statuses."""
    pages = ["job/", "worker/", "job/?q=a", "job/?time=day"]
    for status in statuses or STATUSES:
        job = jobs[status]
        pages += [f"job/?status={status}", f"job/{job.pk}/change/", f"job/{job.pk}/history/"]
        if status != "running":
            pages.append(f"job/{job.pk}/delete/")
    return pages
