"""The list of workers: which processes there are, whether they are alive, the jobs that they run now, and requests.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every request is logged.

A request is what operators ask of a worker in its list: the words of the question and of its answers are here.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import lazy
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...jobs.registry import registry
from ...models import Worker
from ...queue.observe import HeldNow, held_now
from ...queue.store import Store
from ..counts import grouped
from ..durations import distance, moment_of, span
from ..parts import externals
from ..queues_and_workers import STATES, state_after
from .ui.addresses import address_of
from .ui.cells import badge, shortened
from .ui.views import READ_OR_CHANGE, ReadOnlyViews, guarded, refreshing


@dataclass(frozen=True)
class RequestButton:
    name: str
    """The value of `WorkerRequest.request`, and a part of the address."""
    label: Any
    question: Any
    """With the worker's name."""
    explanation: Any
    requested: Any
    """The state until it is done."""
    done: Any
    """The message to the operator, with the worker's name."""
    is_dangerous: bool
    request: Callable[[Worker], bool]


REQUESTS = (
    RequestButton(
        "restart",
        label=_("Restart"),
        question=_("Restart the worker %(worker)s?"),
        explanation=_(
            "It claims nothing more and finishes its jobs, however long they take. Then another process takes its "
            "place."
        ),
        requested=_("restart requested"),
        done=_("The worker %(worker)s restarts once its jobs have ended."),
        is_dangerous=False,
        request=Worker.restart,
    ),
    RequestButton(
        "stop",
        label=_("Stop"),
        question=_("Stop the runworker of %(worker)s?"),
        explanation=_(
            "The whole runworker stops as after SIGTERM, with all its workers. Jobs that still run at the end of the "
            "shutdown timeout are released. What has started it may start it again."
        ),
        requested=_("stop requested"),
        done=_("The runworker of %(worker)s stops."),
        is_dangerous=True,
        request=Worker.stop,
    ),
)

ACTIONS: Any = lazy(lambda: format_html('<span class="visually-hidden">{}</span>', gettext("Actions")), SafeString)()
"""The title of a column that has none on the screen."""

SHOWN_JOBS = 5

MAY_CHANGE = "django_skipqueue.change_worker"


def held_by(worker: Any) -> tuple[int, int, int]:
    """How many jobs the worker of a row holds: in threads, in coroutines, and claimed ahead, waiting for a free slot.

    Either kind of runner has `concurrency` slots. Jobs of tasks that this process does not have count as threads.
    """
    counts = Counter({False: 0, True: 0})
    for task, number in worker.held.tasks.items():
        counts[registry.is_async(task)] += number
    threads, coroutines = (min(counts[kind], worker.concurrency) for kind in (False, True))
    return threads, coroutines, counts.total() - threads - coroutines


class WorkerChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Set the workers of the page, each with the jobs that it `held` at this moment: one query for all.

        A row that stands for no process of ours has the `cells` of a part. It is left out if no part has any.
        """
        super().get_results(request)
        held = held_now(Store.default(), shown=SHOWN_JOBS)
        workers = list(self.result_list)
        cells = {pk: row for each in externals() for pk, row in each.cells(Store.default(), workers).items()}
        for worker in workers:
            worker.held = held.get(worker.pk, HeldNow({}, []))
            worker.cells = cells.get(worker.pk, {})
        self.result_list = [worker for worker in workers if worker.cells or not worker.is_external]


def _by_part_or(column: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    """The column, with the cell of a part for a row that has one."""

    @wraps(column)
    def cell(admin: Any, worker: Any) -> str:
        found: str | None = worker.cells.get(column.__name__)
        return column(admin, worker) if found is None else found

    return cell


@admin.register(Worker)
class WorkerAdmin(ReadOnlyViews):
    """The processes that run jobs. Workers and their supervisors write the rows.

    A change of its row would not change the process, and the row of one that holds jobs stays until they are recovered.
    """

    list_display = ("state", "worker", "queue_names", "slots", "runs_now", "memory", "last_heartbeat", "started")
    list_display_links = None
    list_per_page = 100
    ordering = ("hostname", "name", "id")
    sortable_by = ()
    actions = None

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/worker_list.css"]}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow no lookup in the address: the list has no filters."""
        return False

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return (*self.list_display, "buttons") if request.user.has_perm(MAY_CHANGE) else self.list_display

    def get_urls(self) -> list[URLPattern]:
        return [
            *(self.page(f"{asked.name}/", asked.name, partial(self.request_view, asked=asked)) for asked in REQUESTS),
            *super().get_urls(),
        ]

    @guarded(*READ_OR_CHANGE, may=lambda _, request: request.user.has_perm(MAY_CHANGE))
    def request_view(self, request: HttpRequest, *, asked: RequestButton) -> HttpResponse:
        worker_id = request.GET.get("worker", "").replace("\0", "")
        worker = Worker.objects.filter(pk=worker_id, is_external=False).first()
        name = shortened(worker.name) if worker else ""
        if worker and request.method != "POST":
            return self.ask(
                request,
                title=asked.question % {"worker": name},
                subject=str(asked.label),
                explanation=asked.explanation,
                is_dangerous=asked.is_dangerous,
            )
        if worker and asked.request(worker):
            message = asked.done % {"worker": name}
            self.log_change(request, worker, message)
            self.message_user(request, message, messages.SUCCESS)
        else:
            self.message_user(request, gettext("This worker has ended."), messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": capfirst(self.opts.verbose_name_plural)}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return Worker.objects.with_requests().annotate(now=Now())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkerChangeList

    @admin.display(description=_("state"))
    @_by_part_or
    def state(self, worker: Any) -> SafeString:
        """Live, late or stale, by the age of its heartbeat on the database's clock, and what is requested of it."""
        state = state_after(worker.now - worker.heartbeat_at)
        requested = next((each.requested for each in REQUESTS if each.name == worker.requested), "")
        return format_html('{} <span class="skipqueue-detail">{}</span>', badge(state, STATES[state]), requested)

    @admin.display(description=_("worker"))
    @_by_part_or
    def worker(self, worker: Any) -> SafeString:
        place = gettext("%(host)s · pid %(pid)s") % {"host": shortened(worker.hostname), "pid": worker.pid}
        deployment = worker.deployment and gettext("deployment %(name)s") % {"name": shortened(worker.deployment)}
        return format_html(
            '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{}</span>',
            shortened(worker.name),
            " · ".join(filter(None, [worker.cells.get("detail", ""), place, deployment])),
        )

    @admin.display(description=_("queues"))
    def queue_names(self, worker: Worker) -> str:
        return shortened(", ".join(map(str, worker.queues))) or gettext("all queues")

    @admin.display(description=_("slots"))
    @_by_part_or
    def slots(self, worker: Any) -> SafeString:
        """The number of busy slots. A worker claims some jobs ahead, which wait in it for a slot. It may have none."""
        if not worker.concurrency:
            number = grouped(sum(worker.held.tasks.values()))
            return format_html("{}", gettext("%(number)s on their way") % {"number": number})
        threads, coroutines, ahead = held_by(worker)
        values = {"slots": worker.concurrency, "threads": threads, "coroutines": coroutines}
        busy = gettext("%(threads)s/%(slots)s busy")
        if coroutines:
            busy = gettext("%(threads)s/%(slots)s threads, %(coroutines)s/%(slots)s coroutines busy")
        more = gettext("%(number)s claimed ahead") % {"number": ahead} if ahead else ""
        return format_html('{}<span class="skipqueue-detail">{}</span>', busy % values, more)

    @admin.display(description=_("memory"))
    @_by_part_or
    def memory(self, worker: Any) -> SafeString:
        """Its resident size and the number of jobs it has done, as of its supervisor's last heartbeat."""
        size = "" if worker.memory_mb is None else gettext("%(number)s MiB") % {"number": grouped(worker.memory_mb)}
        done = ngettext("%(number)s job done", "%(number)s jobs done", worker.jobs_done)
        return format_html(
            '{} <span class="skipqueue-detail">{}</span>', size, done % {"number": grouped(worker.jobs_done)}
        )

    @admin.display(description=ACTIONS, empty_value="")
    def buttons(self, worker: Any) -> SafeString | str:
        """Links to the questions whether to restart it or to stop. No process that counts as dead has any."""
        if worker.is_external or state_after(worker.now - worker.heartbeat_at) == "stale":
            return ""
        links = format_html_join(
            " ",
            '<a class="button skipqueue-quiet" href="{}" aria-label="{}">{}</a>',
            (
                (
                    self.address(asked.name, query={"worker": worker.pk}),
                    asked.question % {"worker": shortened(worker.name)},
                    asked.label,
                )
                for asked in REQUESTS
            ),
        )
        return format_html('<span class="skipqueue-buttons">{}</span>', links)

    @admin.display(description=_("started"))
    def started(self, worker: Any) -> str:
        return distance(worker.started_at, worker.now)

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, worker: Any) -> str:
        return distance(worker.heartbeat_at, worker.now)

    @admin.display(description=_("runs now"))
    @_by_part_or
    def runs_now(self, worker: Any) -> SafeString | str:
        if not worker.concurrency:
            return ""
        jobs = worker.held.jobs
        if not jobs:
            return gettext("nothing")
        running = sum(held_by(worker)[:2])
        shown = min(SHOWN_JOBS, running)
        links = format_html_join(
            " ",
            '<span class="skipqueue-running"><a href="{}">{} <span class="skipqueue-detail">#{}</span></a>'
            ' <span class="skipqueue-detail">{}</span></span>',
            (self._link(worker.now, **job) for job in jobs[:shown]),
        )
        return format_html("{} {}", links, gettext("and more") if running > shown else "")

    def _link(self, now: datetime, *, id: int, task: str, since: str) -> tuple[str, str, int, str]:
        address = address_of("job_change", id, site=self.admin_site.name)
        began = moment_of(since)
        ran = gettext("for %(span)s") % {"span": span(now - began)} if began else ""
        return address, shortened(task.rpartition(".")[2] or task), id, ran
