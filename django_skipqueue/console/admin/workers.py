"""Workers in the admin: their list, a worker's page, and the views that restart or stop a worker.

Each column of the list is a fact of `WORKER` in `console.workers`. Every view checks the user's permission itself, a
GET changes nothing, and every restart or stop is logged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import lazy
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...models import Status, Worker
from ...queue.store import Store
from ...values.records import worker_name
from ..counts import grouped
from ..durations import exact, moment_of, span
from ..facts import NOTHING, Renderers
from ..job_states import RETRYING
from ..job_states import STATES as JOB_STATES
from ..queues_and_workers import WORKER_STATES
from ..workers import (
    NEWEST_JOBS,
    SHOWN_JOBS,
    WORKER,
    WORKER_VERBS,
    LastJob,
    ListedWorker,
    PastProcess,
    WorkerVerb,
    last_jobs_of,
    processes_of,
    worker_rows,
    worker_states,
)
from .ui.cells import Cell, Column, Table, badge, columns_of, job_link, queue_link, shortened, worker_link
from .ui.views import READ, READ_OR_CHANGE, ReadOnlyViews, guarded, refreshing

ACTIONS: Any = lazy(lambda: format_html('<span class="visually-hidden">{}</span>', gettext("Actions")), SafeString)()
"""The title of the column with buttons. Only screen readers read it."""

MAY_CHANGE = "django_skipqueue.change_worker"

MOST_JOBS_OF_WORKER = 50
"""A worker's page shows at most this many running jobs."""

MOST_QUEUES_OF_WORKER = 20
"""A worker's row shows at most this many queues."""


def _state_cell(worker: ListedWorker) -> Cell:
    """Show whether the worker's heartbeat is live, late or stale, and what an operator has requested of the worker."""
    mark = badge(worker.state, WORKER_STATES[worker.state])
    return format_html('{} <span class="skipqueue-detail">{}</span>', mark, worker.requested)


def _worker_cell(worker: ListedWorker) -> Cell:
    process = gettext("%(host)s · pid %(pid)s") % {"host": shortened(worker.row.hostname), "pid": worker.row.pid}
    deployment = worker.row.deployment and gettext("deployment %(name)s") % {"name": shortened(worker.row.deployment)}
    return format_html(
        '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{}</span>',
        worker_link(worker.row.pk),
        " · ".join(filter(None, [worker.cells.get("detail", ""), process, deployment])),
    )


def _queues_cell(worker: ListedWorker) -> Cell:
    links = format_html_join(
        ", ", "{}", ((queue_link(str(name)),) for name in worker.row.queues[:MOST_QUEUES_OF_WORKER])
    )
    return links or gettext("all queues")


def _slots_cell(worker: ListedWorker) -> Cell:
    """Show the busy slots, and the claimed jobs that wait in the worker for a free slot."""
    slots = worker.row.concurrency
    if not slots:
        number = grouped(sum(worker.held.tasks.values()))
        return gettext("%(number)s on their way") % {"number": number}
    threads, coroutines, claimed_ahead = worker.busy
    values = {"slots": slots, "threads": threads, "coroutines": coroutines}
    busy = gettext("%(threads)s/%(slots)s busy")
    if coroutines:
        busy = gettext("%(threads)s/%(slots)s threads, %(coroutines)s/%(slots)s coroutines busy")
    claimed_ahead_text = gettext("%(number)s claimed ahead") % {"number": claimed_ahead} if claimed_ahead else ""
    return format_html('{} <span class="skipqueue-detail">{}</span>', busy % values, claimed_ahead_text)


def _memory_cell(worker: ListedWorker) -> Cell:
    """Show the worker's memory and its number of finished jobs, as of its supervisor's last heartbeat."""
    memory, jobs = worker.row.memory_mb, worker.row.jobs_done
    size = "" if memory is None else gettext("%(number)s MiB") % {"number": grouped(memory)}
    done = ngettext("%(number)s job done", "%(number)s jobs done", jobs) % {"number": grouped(jobs)}
    return format_html('{} <span class="skipqueue-detail">{}</span>', size, done)


def _runs_now_cell(worker: ListedWorker, *, most: int = SHOWN_JOBS) -> Cell:
    if not worker.row.concurrency:
        return ""
    if not worker.held.jobs:
        return gettext("nothing")
    running_count = sum(worker.busy[:2])
    shown_count = min(most, running_count)
    links = format_html_join(
        " ",
        '<span class="skipqueue-running">{} <span class="skipqueue-detail">{}</span></span>',
        (_running_job(worker, **job) for job in worker.held.jobs[:shown_count]),
    )
    return format_html("{} {}", links, gettext("and more") if running_count > shown_count else "")


def _running_job(worker: ListedWorker, *, id: int, task: str, since: str) -> tuple[SafeString, str]:
    started_at = moment_of(since)
    running_time = gettext("for %(span)s") % {"span": span(worker.now - started_at)} if started_at else ""
    return job_link(id, task.rpartition(".")[2] or task), running_time


WORKER_RENDERERS: Renderers[ListedWorker] = {
    "state": _state_cell,
    "worker": _worker_cell,
    "queue_names": _queues_cell,
    "slots": _slots_cell,
    "runs_now": _runs_now_cell,
    "memory": _memory_cell,
}

WORKER_COLUMNS = columns_of(WORKER, (), WORKER_RENDERERS)


def _cell(column: Column[ListedWorker], worker: ListedWorker) -> Cell:
    """Return a part's own cell for this worker, if it has one; otherwise the column's cell."""
    own_cell = worker.cells.get(column.name)
    return column.cell(worker) if own_cell is None else own_cell


def _display_function(column: Column[ListedWorker]) -> Callable[[Any], Cell]:
    """Return a function that shows the column's cell for a row, because Django's list expects a function."""

    def display(row: Any) -> Cell:
        return _cell(column, row.shown)

    display.__name__ = column.name
    display.short_description = column.title  # type: ignore[attr-defined]  # Django reads it
    return display


class WorkerChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Set the page's workers. Each row's `shown` is the worker's state."""
        super().get_results(request)
        states = worker_states(self.result_list)
        for state in states:
            state.row.shown = state
        self.result_list = [state.row for state in states]


def _job_state_cell(job: LastJob) -> Cell:
    state = RETRYING if job.status == Status.SCHEDULED and job.attempts else job.status
    return badge(state, JOB_STATES[state])


LAST_JOBS: tuple[Column[LastJob], ...] = (
    Column("job", _("job"), lambda job: job_link(job.id, job.task)),
    Column("status", _("status"), _job_state_cell),
    Column("queue", _("queue"), lambda job: queue_link(job.queue_name)),
    Column(
        "ran", _("ran"), lambda job: span(job.ended_at - job.began_at) if job.began_at and job.ended_at else NOTHING
    ),
    Column("ended", _("ended"), lambda job: exact(job.ended_at) if job.ended_at else NOTHING),
)

PROCESSES: tuple[Column[PastProcess], ...] = (
    Column("process", _("process"), lambda process: worker_link(process.id, process.id)),
    Column("jobs", _("jobs"), lambda process: grouped(process.jobs)),
    Column("began", _("first began"), lambda process: exact(process.began_at) if process.began_at else NOTHING),
    Column("ended", _("last ended"), lambda process: exact(process.ended_at) if process.ended_at else NOTHING),
    Column("lost", _("jobs lost when it died"), lambda process: grouped(process.lost) if process.lost else NOTHING),
)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyViews):
    """The admin of the processes that run jobs.

    Workers and their supervisors write the rows. The rows cannot be edited, because that would not change the process.
    The row of a dead worker remains until its jobs are recovered.
    """

    list_display = tuple(map(_display_function, WORKER_COLUMNS))
    list_display_links = None
    list_per_page = 100
    ordering = ("hostname", "name", "id")
    sortable_by = ()
    actions = None

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/worker_list.css"]}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Refuse every lookup in the URL, because the list has no filters."""
        return False

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        return (*self.list_display, "buttons") if request.user.has_perm(MAY_CHANGE) else self.list_display

    def get_urls(self) -> list[URLPattern]:
        return [
            *(self.page(f"{verb.name}/", verb.name, partial(self.request_view, verb=verb)) for verb in WORKER_VERBS),
            *super().get_urls(),
        ]

    @guarded(*READ_OR_CHANGE, may=lambda _, request: request.user.has_perm(MAY_CHANGE))
    def request_view(self, request: HttpRequest, *, verb: WorkerVerb) -> HttpResponse:
        worker_id = request.GET.get("worker", "").replace("\0", "")
        worker = Worker.objects.filter(pk=worker_id, is_external=False).first()
        name = shortened(worker.name) if worker else ""
        if worker and request.method != "POST":
            return self.ask(
                request,
                title=verb.question % {"worker": name},
                subject=str(verb.label),
                explanation=verb.explanation,
                is_dangerous=verb.is_dangerous,
            )
        if worker and verb.request(worker):
            message = verb.done % {"worker": name}
            self.log_change(request, worker, message)
            self.message_user(request, message, messages.SUCCESS)
        else:
            self.message_user(request, gettext("This worker has ended."), messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": capfirst(self.opts.verbose_name_plural)}
        return super().changelist_view(request, context | (extra_context or {}))

    @refreshing
    @guarded(*READ)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a worker, even if it has ended, with its last jobs and the earlier processes of the same name."""
        worker_id, store = unquote(object_id), Store.default()
        workers = worker_states(worker_rows().filter(pk=worker_id), shown=MOST_JOBS_OF_WORKER)
        worker = workers[0] if workers else None
        jobs, processes = last_jobs_of(store, worker_id), processes_of(store, worker_id)
        if worker is None and not processes:
            self.message_user(request, gettext("This worker has ended."), messages.WARNING)
            return HttpResponseRedirect(self.address("changelist"))
        name = shortened(worker_name(worker_id))
        renderers = {**WORKER_RENDERERS, "runs_now": partial(_runs_now_cell, most=MOST_JOBS_OF_WORKER)}
        columns = columns_of(WORKER, (), renderers)
        if worker:
            worker.row.shown = worker
        content = {
            "facts": [(column, _cell(column, worker)) for column in columns] if worker else (),
            "buttons": self.buttons(worker.row) if worker and request.user.has_perm(MAY_CHANGE) else "",
            "jobs": Table(LAST_JOBS, jobs),
            "processes": Table(PROCESSES, processes),
            "newest": grouped(NEWEST_JOBS),
        }
        return self.show(request, "worker/page.html", name, content | (extra_context or {}), title=name)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return worker_rows()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkerChangeList

    @admin.display(description=ACTIONS, empty_value="")
    def buttons(self, worker: Any) -> SafeString | str:
        """Show links to restart or stop the worker; empty if the process counts as dead."""
        if not worker.shown.takes_requests:
            return ""
        links = format_html_join(
            " ",
            '<a class="button skipqueue-quiet" href="{}" aria-label="{}">{}</a>',
            (
                (
                    self.address(verb.name, query={"worker": worker.pk}),
                    verb.question % {"worker": shortened(worker.name)},
                    verb.label,
                )
                for verb in WORKER_VERBS
            ),
        )
        return format_html('<span class="skipqueue-buttons">{}</span>', links)
