"""Batches in the admin: the list of batches with its filters, and the page of a batch with a graph of its jobs.

These pages only read. Their buttons post to the list of jobs, which asks for confirmation and applies the verb.

The columns of the list are the facts of `BATCH_FACTS`.

For the graph, the page reads the batch's jobs and their dependencies: at most `MOST_JOBS_OF_STATUS` jobs per status and
`MOST_EDGES` edges, however large the batch is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.jobs.changelist import CappedPaginator
from ...console.admin.jobs.filters import GroupFilter
from ...console.admin.ui.addresses import address_of
from ...console.admin.ui.cells import Cell, badge, columns_of, rows, shortened
from ...console.admin.ui.views import READ, OwnChangeList, ReadOnlyViews, guarded, refreshing
from ...console.counts import Count, grouped
from ...console.durations import exact, span
from ...console.facts import NOTHING, Renderers
from ...console.job_states import Group, Indexed
from ...console.search import is_id
from ...console.verbs.table import CANCEL, DISCARD, RETRY
from ...console.verbs.verb import Verb
from ...models import FINISHED, Dependency, Job, JobBatch, Status
from ...models.job import AbstractJob
from .console import (
    BATCH_FACTS,
    BATCH_STATES,
    CALLBACKS,
    STATE_CONDITIONS,
    BatchState,
    Callback,
    batch_state,
    batch_states,
    callbacks_of,
    unmet_needs,
    with_time,
)
from .graph import Drawing, DrawnNode, Graph, GraphJob, Node, cut, graph_of, last_layer

BATCH_BADGES = {"running": "running", "finished": "completed", "failures": "failed"}
"""A batch's badge has the colour of this job status."""

PROGRESS_BAR = '<progress class="skipqueue-progress" max="1" value="{}" data-status="{}" aria-label="{}"></progress>'


def state_badge(batch: BatchState) -> SafeString:
    return badge(BATCH_BADGES[batch.state], BATCH_STATES[batch.state])


def name_of(batch: JobBatch) -> str:
    return shortened(batch.name) or gettext("batch")


def link_to(batch: JobBatch) -> SafeString:
    address = address_of("jobbatch_change", batch.pk)
    return format_html(
        '<a class="skipqueue-name" href="{}">{}</a> <span class="skipqueue-detail">#{}</span>',
        address,
        name_of(batch),
        batch.pk,
    )


def progress(batch: BatchState) -> Cell:
    if batch.share is None:
        return batch.numbers
    label = gettext("Progress of batch %(id)s") % {"id": batch.row.pk}
    return format_html("{}" + PROGRESS_BAR, batch.numbers, f"{batch.share:.4f}", BATCH_BADGES[batch.state], label)


def numbers(batch: BatchState) -> Cell:
    labelled_counts = ((status, Status(status).label, grouped(number)) for status, number in batch.counts.items())
    return format_html_join(
        " ", '<span class="skipqueue-of-status" data-status="{}">{}: <strong>{}</strong></span>', labelled_counts
    )


def _link_to_outer(batch: BatchState) -> Cell:
    parent_id = batch.row.parent_id
    if parent_id is None:
        return NOTHING
    return format_html('<a href="{}">#{}</a>', address_of("jobbatch_change", parent_id), parent_id)


BATCH_CELLS: Renderers[BatchState] = {
    "id": None,
    "batch": lambda batch: link_to(batch.row),
    "state": state_badge,
    "progress": progress,
    "jobs": numbers,
    "failed": None,
    "outside": _link_to_outer,
}

BATCH_COLUMNS = columns_of(BATCH_FACTS, (), BATCH_CELLS)

ON_DASHBOARD = BATCH_COLUMNS[:5]

MOST_BATCHES_ON_DASHBOARD = 5


def on_dashboard(_: object = None) -> dict[str, Any]:
    """Return the dashboard's table: the newest running batches, then the newest batches with failures."""
    newest_by_state = (
        with_time(JobBatch.objects.filter(STATE_CONDITIONS[state])).order_by("-pk")[:MOST_BATCHES_ON_DASHBOARD]
        for state in ("running", "failures")  # by the indexes open and failures
    )
    batches = [batch for newest in newest_by_state for batch in batch_states(newest)]
    return {"columns": ON_DASHBOARD, "rows": rows(ON_DASHBOARD, batches)}


class BatchFilter(GroupFilter):
    """Filters the list of jobs by batch. Index: batch."""

    title = _("batch")
    parameter_name = "batch"
    column = "batch_id"


def job_filters() -> tuple[type[BatchFilter], ...]:
    return (BatchFilter,)


class BatchStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(BATCH_STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobBatch]) -> QuerySet[JobBatch]:
        condition = STATE_CONDITIONS.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class InsideFilter(admin.SimpleListFilter):
    """Filters the list of batches by the outer batch. Only links use this filter; the sidebar does not list it."""

    title = _("belongs to")
    parameter_name = "inside"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        batch_id = self.value()
        return [(batch_id, f"#{batch_id}")] if batch_id else []

    def value(self) -> str | None:
        batch_id = super().value()
        return batch_id if batch_id and is_id(batch_id) else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobBatch]) -> QuerySet[JobBatch]:
        batch_id = self.value()
        return queryset.filter(parent_id=int(batch_id)) if batch_id else queryset


MOST_JOBS_OF_STATUS = 1_000
MOST_EDGES = 20_000

CALLBACK_STATUS = {"waits": "blocked", "skipped": "discarded", "not called": "discarded", "gone": "discarded"}
"""If a callback has no job, its badge has the colour of this job status."""


def callback_state(callback: Callback) -> str:
    words = {
        "waits": gettext("waits for the end of the batch"),
        "skipped": gettext("skipped: another job held its unique key"),
        "not called": gettext("not called"),
        "gone": gettext("job deleted or pruned"),
    }
    return words.get(callback.state) or str(Status(callback.state).label)


@dataclass(frozen=True)
class Picture:
    row: JobBatch
    graph: Graph
    partial: frozenset[str] = frozenset()
    """The statuses of which only the newest jobs were read, because there are too many."""
    inner: Sequence[BatchState] = ()
    callbacks: Sequence[Callback] = ()

    @classmethod
    def of(cls, row: JobBatch, inner: Sequence[BatchState], callbacks: Sequence[Callback]) -> "Picture":
        """Read the batch's jobs and make the graph. Indexes: batch, the primary key of dependencies."""
        callback_ids = set(row.callback_ids or ())
        jobs: list[GraphJob] = []
        partial = set()
        for status in Status:
            newest = Job.objects.filter(batch_id=row.pk, status=status).order_by("-pk").values_list("pk", "task")
            ids_and_tasks = list(newest[: MOST_JOBS_OF_STATUS + 1])
            if len(ids_and_tasks) > MOST_JOBS_OF_STATUS:
                partial.add(status.value)
            jobs += [
                GraphJob(pk, task, status.value)
                for pk, task in ids_and_tasks[:MOST_JOBS_OF_STATUS]
                if pk not in callback_ids
            ]
        ids = [job.id for job in jobs]
        edges = Dependency.objects.using(row._state.db).filter(job_id__in=ids).values_list("job_id", "needs_job_id")
        graph = graph_of(jobs, list(edges[:MOST_EDGES]))
        inner_nodes = [
            Node(f"batch {batch.row.pk}", "batch", 0, name_of(batch.row), BATCH_BADGES[batch.state], batch.row.pk)
            for batch in inner
        ]
        graph = Graph([*graph.nodes, *inner_nodes], graph.edges, graph.hidden)
        layer = last_layer(graph)
        callback_nodes = [
            Node(
                callback.name,
                "callback",
                layer,
                callback.task,
                CALLBACK_STATUS.get(callback.state, callback.state),
                None if callback.state == "gone" else callback.job_id,
            )
            for callback in callbacks
            if callback.state != "not called"
        ]
        return cls(row, graph.followed_by(callback_nodes), frozenset(partial), inner, callbacks)

    @cached_property
    def drawing(self) -> Drawing:
        return Drawing(self.graph)

    @cached_property
    def nodes(self) -> list[DrawnNode]:
        """The nodes from left to right, and from top to bottom in each column: the order of keyboard focus."""
        return [self._drawn(node) for column in self.drawing.columns for node in column]

    @property
    def rows(self) -> Iterator[tuple[DrawnNode, str]]:
        """The rows of the table below the graph: drawn node, and the labels of the nodes that it waits for."""
        titles = {drawn.node.name: f"{drawn.label} ({drawn.detail})" for drawn in self.nodes}
        for drawn in self.nodes:
            yield drawn, ", ".join(titles[before.name] for before in self.graph.before(drawn.node))

    @property
    def note(self) -> str:
        """A sentence about jobs that the picture leaves out; empty if it shows all jobs."""
        parts = []
        if self.partial:
            parts.append(
                gettext("Of each status, the newest %(number)s jobs are shown.")
                % {"number": grouped(MOST_JOBS_OF_STATUS)}
            )
        if self.graph.hidden:
            parts.append(
                ngettext("%(number)s job is left out.", "%(number)s jobs are left out.", self.graph.hidden)
                % {"number": grouped(self.graph.hidden)}
            )
        return " ".join(parts)

    def _drawn(self, node: Node) -> DrawnNode:
        x, y = self.drawing.places[node.name]
        detail = self._detail(node)
        title = f"{shortened(node.label)}: {detail}"
        return DrawnNode(node, x, y, cut(node.label), detail, title, self._address(node))

    def _detail(self, node: Node) -> str:
        if node.kind == "batch":
            inner = next(batch for batch in self.inner if batch.row.pk == node.id)
            return gettext("batch #%(id)s, %(state)s, %(numbers)s") % {
                "id": node.id,
                "state": BATCH_STATES[inner.state],
                "numbers": inner.numbers,
            }
        if node.kind == "callback":
            callback = next(callback for callback in self.callbacks if callback.name == node.name)
            job = f" #{callback.job_id}" if callback.job_id else ""
            words = {"waits": gettext("waits"), "skipped": gettext("skipped"), "gone": gettext("deleted")}
            state = words.get(callback.state) or Status(callback.state).label
            return f"{CALLBACKS[callback.name]}{job}, {state}"
        label = str(Status(node.status).label)
        if node.kind == "job":
            return f"#{node.id}, {label}"
        plus = "+" if node.status in self.partial else ""  # there may be more jobs than were read
        return f"{grouped(node.number)}{plus} \N{MULTIPLICATION SIGN} {label}"

    def _address(self, node: Node) -> str:
        if node.kind == "batch":
            return address_of("jobbatch_change", node.id)
        if node.kind == "jobs":
            query = {"batch": self.row.pk, "status": node.status, "task": node.label}
            return address_of("job_changelist", query=query)
        return "" if node.id is None else address_of("job_change", node.id)


MOST_INNER_SHOWN = 20

VERB_LABELS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these jobs")),
    (DISCARD, _("Discard these jobs")),
    (CANCEL, _("Cancel these jobs")),
)
"""The buttons for all jobs of the batch that have one status."""


@dataclass(frozen=True)
class BatchPage:
    batch: BatchState

    @property
    def row(self) -> JobBatch:
        return self.batch.row

    @property
    def name(self) -> str:
        return shortened(self.row.name)

    @property
    def times(self) -> Iterator[tuple[Any, str]]:
        """The label and the text of each time of the batch."""
        yield _("Created"), exact(self.row.created_at)
        if self.row.finished_at is None:
            yield _("Running for"), span(self.batch.now - self.row.created_at)
        else:
            yield _("Finished"), exact(self.row.finished_at)
            yield _("Took"), span(self.row.finished_at - self.row.created_at)

    @cached_property
    def callbacks(self) -> list[Callback]:
        return callbacks_of(self.row)

    @property
    def shown_callbacks(self) -> Iterator[tuple[Any, str, int | None, SafeString]]:
        """For each callback: when it is called, its task, its job's id if it has a job, and a badge."""
        for callback in self.callbacks:
            status = CALLBACK_STATUS.get(callback.state, callback.state)
            job_id = None if callback.state == "gone" else callback.job_id
            yield CALLBACKS[callback.name], shortened(callback.task), job_id, badge(status, callback_state(callback))

    @cached_property
    def jobs(self) -> dict[Status, Count]:
        """The number of the batch's jobs by status, unfinished first, without jobs of inner batches. Index: batch."""
        group = Group("batch_id", self.row.pk)
        counts = {status: Indexed.covering(status.value, group=group).count() for status in Status}
        return {status: count for status, count in counts.items() if count.found}

    @property
    def pruned(self) -> int:
        """How many of the batch's jobs have been pruned."""
        if self.batch.is_open or self.inner or any(count.is_capped for count in self.jobs.values()):
            return 0
        finished = sum(count.found for status, count in self.jobs.items() if status in FINISHED)
        return max(0, self.batch.total - finished)

    @cached_property
    def inner(self) -> list[BatchState]:
        """The newest inner batches. Index: inner."""
        newest = with_time(JobBatch.objects.filter(parent_id=self.row.pk)).order_by("-pk")
        return batch_states(newest[:MOST_INNER_SHOWN])

    @property
    def inner_query(self) -> str:
        """The URL query that lists all inner batches; empty if the page already shows all of them."""
        return urlencode({"inside": self.row.pk}) if len(self.inner) == MOST_INNER_SHOWN else ""

    @cached_property
    def picture(self) -> Picture:
        return Picture.of(self.row, self.inner, self.callbacks)


MOST_NAMES_SEARCHED = 20_000
"""A search by name reads this many of the newest batches."""


class BatchChangeList(OwnChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Read the batches of the page and their progress, by a few queries for all of them together."""
        super().get_results(request)
        self.cells = rows(BATCH_COLUMNS, batch_states(self.result_list))


@admin.register(JobBatch)
class BatchAdmin(ReadOnlyViews):
    """The read-only pages of batches: code makes batches, workers finish them, and pruning deletes them."""

    list_filter = (BatchStateFilter, InsideFilter)
    list_per_page = list_max_show_all = 25
    list_display_links = None
    ordering = ("-pk",)
    sortable_by = ()
    actions = None
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
    search_fields = ("name",)
    search_help_text = _("An id (#42), or a part of the name of one of the newest 20,000 batches.")
    change_list_template = "admin/django_skipqueue/jobbatch/change_list.html"

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/batches.css"]}

    @refreshing
    @guarded(*READ)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. Only GET is allowed."""
        context = {"title": capfirst(str(self.opts.verbose_name_plural)), "columns": BATCH_COLUMNS}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobBatch]:
        return with_time(JobBatch.objects.all())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BatchChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[JobBatch], search_term: str
    ) -> tuple[QuerySet[JobBatch], bool]:
        """Search by id, or by a part of the name in the newest batches."""
        text = search_term.replace("\0", "").strip()
        if is_id(text.removeprefix("#")):
            return queryset.filter(pk=int(text.removeprefix("#"))), False
        if not text:
            return queryset, False
        newest = JobBatch.objects.order_by("-pk").values("pk")[:MOST_NAMES_SEARCHED]
        return queryset.filter(pk__in=newest, name__icontains=text), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Accept only the lookups of the filters in the URL."""
        return lookup in {filter.parameter_name for filter in self.list_filter}

    @refreshing
    @guarded(*READ)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a batch. Only GET is allowed."""
        batch = batch_state(int(object_id)) if is_id(object_id) else None
        if batch is None:
            message = gettext("There is no batch %(id)s. It may have been pruned.") % {"id": object_id}
            self.message_user(request, message, messages.WARNING)
            return HttpResponseRedirect(self.address("changelist"))
        page = BatchPage(batch)
        title = page.name or gettext("Batch %(id)s") % {"id": page.row.pk}
        content = {
            "page": page,
            "badge": state_badge(batch),
            "numbers": numbers(batch),
            "groups": [
                {
                    "status": status,
                    "count": count,
                    "query": urlencode({"batch": page.row.pk, "status": status.value}),
                    "verbs": self._verbs_for(request, status),
                }
                for status, count in page.jobs.items()
            ],
            "inner": [(link_to(inner.row), state_badge(inner), inner.numbers) for inner in page.inner],
            "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
        }
        return self.show(request, "jobbatch/batch.html", page.row, content | (extra_context or {}), title=title)

    def _verbs_for(self, request: HttpRequest, status: Status) -> list[tuple[Verb, Any]]:
        has_perm = request.user.has_perm
        if not has_perm("django_skipqueue.view_job"):
            return []
        offered = [(verb, label) for verb, label in VERB_LABELS if verb.is_offered_for(status)]
        return [(verb, label) for verb, label in offered if has_perm(f"django_skipqueue.{verb.permission}_job")]


MOST_NEEDS_SHOWN = 5


def of_job(job: AbstractJob) -> dict[str, Any]:
    """Return the context of a job's page: its batch, unless it was pruned, and some of the jobs that it waits for."""
    batch_id = getattr(job, "batch_id", None)  # an archived job has none
    batch = batch_id and JobBatch.objects.filter(pk=batch_id).only("pk", "name").first()
    needs = unmet_needs(job, limit=MOST_NEEDS_SHOWN + 1) if isinstance(job, Job) and job.status not in FINISHED else []
    badges = [
        badge(need.status, Status(need.status).label) if need.status else badge("discarded", gettext("deleted"))
        for need in needs[:MOST_NEEDS_SHOWN]
    ]
    return {"batch": batch, "needs": list(zip(needs, badges, strict=False)), "has_more": len(needs) > MOST_NEEDS_SHOWN}
