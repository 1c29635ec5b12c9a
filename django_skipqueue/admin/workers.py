"""Workers in the admin: which processes there are, whether they are alive, what they run now. To be looked at only."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet
from django.db.models.functions import JSONObject, Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..models import Job, Worker
from .cells import shortened
from .durations import distance

if TYPE_CHECKING:
    WorkerModelAdmin = admin.ModelAdmin[Worker]
else:
    WorkerModelAdmin = admin.ModelAdmin

SHOWN_JOBS = 5


@admin.register(Worker)
class WorkerAdmin(WorkerModelAdmin):
    """The processes that run jobs. Their supervisors write the rows, and remove them."""

    list_display = ("state", "worker", "queue_names", "concurrency", "started", "last_heartbeat", "runs_now")
    list_display_links = None
    list_per_page = 100
    ordering = ("hostname", "name", "id")
    sortable_by = ()
    actions = None

    class Media:
        css = {"all": ["django_skipqueue/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Workers make their rows themselves."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        """Nothing about a process can be changed by changing its row."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        """A row says that a process holds jobs: it goes when they have been recovered."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The list, by its plain name: nothing here is selected."""
        return super().changelist_view(
            request, {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Workers with the database's time, and the first jobs that they run: one query for all."""
        jobs = Job.objects.running().filter(locked_by=OuterRef("pk")).order_by("locked_at", "pk")
        first = jobs.values(job=JSONObject(id="pk", task="task"))[: SHOWN_JOBS + 1]
        return Worker.objects.annotate(now=Now(), jobs=ArraySubquery(first))

    @admin.display(description=_("state"))
    def state(self, worker: Any) -> SafeString:
        """Live, or stale: not heard of within the lease, by the database's clock."""
        is_live = worker.is_live(worker.now, timedelta(seconds=settings.lease))
        return format_html(
            '<span class="skipqueue-badge" data-status="{}">{}</span>',
            "live" if is_live else "stale",
            gettext("live") if is_live else gettext("stale"),
        )

    @admin.display(description=_("worker"))
    def worker(self, worker: Worker) -> SafeString:
        """Its name; host and process id below it."""
        return format_html(
            '<span class="skipqueue-name">{}</span> <span class="skipqueue-detail">{} · pid {}</span>',
            shortened(worker.name),
            shortened(worker.hostname),
            worker.pid,
        )

    @admin.display(description=_("queues"))
    def queue_names(self, worker: Worker) -> str:
        """The queues it serves, in the order in which it does."""
        return shortened(", ".join(worker.queues)) or gettext("all")

    @admin.display(description=_("started"))
    def started(self, worker: Any) -> str:
        """How long ago."""
        return distance(worker.started_at, worker.now)

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, worker: Any) -> str:
        """How long ago."""
        return distance(worker.heartbeat_at, worker.now)

    @admin.display(description=_("runs now"))
    def runs_now(self, worker: Any) -> SafeString | str:
        """Links to the jobs it holds, the oldest first."""
        if not worker.jobs:
            return gettext("nothing")
        links = format_html_join(
            " ",
            '<a class="skipqueue-running" href="{}">{} <span class="skipqueue-detail">#{}</span></a>',
            (self._link(**job) for job in worker.jobs[:SHOWN_JOBS]),
        )
        more = gettext("and more") if len(worker.jobs) > SHOWN_JOBS else ""
        return format_html("{} {}", links, more)

    def _link(self, *, id: int, task: str) -> tuple[str, str, int]:
        address = reverse("admin:django_skipqueue_job_change", args=[id], current_app=self.admin_site.name)
        return address, shortened(task.rpartition(".")[2] or task), id
