"""The picture of one batch: reads its jobs and what they wait for, and says what each node is.

Invariant: at most `NEWEST` jobs of each status are read, and `MOST_EDGES` edges, whatever the size of the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext, ngettext

from ...models import Dependency, Job, JobBatch, Status
from ...operators.batch_states import CALLBACKS, STATES, BatchState, Callback
from ...operators.counts import grouped
from ..ui.cells import shortened
from .columns import BADGES, name_of
from .drawing import Drawing, DrawnNode, cut
from .graph import Graph, GraphJob, Node, graph_of, last_layer

NEWEST = 1_000
MOST_EDGES = 20_000

CALLBACK_STATUS = {"waits": "blocked", "skipped": "discarded", "not called": "discarded", "gone": "discarded"}
"""The colour of a callback without a job: that of a status of jobs."""


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
    """The statuses of which only the newest jobs were read."""
    inner: Sequence[BatchState] = ()
    callbacks: Sequence[Callback] = ()

    @classmethod
    def of(cls, row: JobBatch, inner: Sequence[BatchState], callbacks: Sequence[Callback]) -> "Picture":
        """Read the jobs. Indexes: batch, the primary key of dependencies."""
        apart = set(row.callback_ids or ())
        jobs: list[GraphJob] = []
        partial = set()
        for status in Status:
            newest = Job.objects.filter(batch_id=row.pk, status=status).order_by("-pk").values_list("pk", "task")
            found = list(newest[: NEWEST + 1])
            if len(found) > NEWEST:
                partial.add(status.value)
            jobs += [GraphJob(pk, task, status.value) for pk, task in found[:NEWEST] if pk not in apart]
        ids = [job.id for job in jobs]
        edges = Dependency.objects.using(row._state.db).filter(job_id__in=ids).values_list("job_id", "needs_job_id")
        graph = graph_of(jobs, list(edges[:MOST_EDGES]))
        graph = Graph([*graph.nodes, *map(_inner_node, inner)], graph.edges, graph.hidden)
        layer = last_layer(graph)
        last = [_callback_node(each, layer) for each in callbacks if each.state != "not called"]
        return cls(row, graph.followed_by(last), frozenset(partial), inner, callbacks)

    @cached_property
    def drawing(self) -> Drawing:
        return Drawing(self.graph)

    @cached_property
    def nodes(self) -> list[DrawnNode]:
        """The nodes from left to right, each column from top to bottom: the order of the keyboard."""
        return [self._drawn(node) for column in self.drawing.columns for node in column]

    @property
    def rows(self) -> Iterator[tuple[DrawnNode, str]]:
        """Each node with its label, and the labels of the nodes that it waits for: the rows of a table."""
        titles = {each.node.name: f"{each.label} ({each.detail})" for each in self.nodes}
        for each in self.nodes:
            yield each, ", ".join(titles[before.name] for before in self.graph.before(each.node))

    @property
    def is_worth_it(self) -> bool:
        return bool(self.graph.nodes)

    @property
    def note(self) -> str:
        """What is not in the picture; empty if all is."""
        parts = []
        if self.partial:
            parts.append(gettext("Of each status, the newest %(number)s jobs are shown.") % {"number": grouped(NEWEST)})
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
            inner = next(each for each in self.inner if each.row.pk == node.id)
            return gettext("batch #%(id)s, %(state)s, %(numbers)s") % {
                "id": node.id,
                "state": STATES[inner.state],
                "numbers": inner.numbers,
            }
        if node.kind == "callback":
            callback = next(each for each in self.callbacks if each.name == node.name)
            job = f" #{callback.job_id}" if callback.job_id else ""
            return f"{CALLBACKS[callback.name]}{job}, {_brief(callback)}"
        label = str(Status(node.status).label)
        if node.kind == "job":
            return f"#{node.id}, {label}"
        more = "+" if node.status in self.partial else ""
        return f"{grouped(node.number)}{more} \N{MULTIPLICATION SIGN} {label}"

    def _address(self, node: Node) -> str:
        if node.kind == "batch":
            return reverse("admin:django_skipqueue_jobbatch_change", args=[node.id])
        if node.kind == "jobs":
            query: dict[str, Any] = {"batch": self.row.pk, "status": node.status, "task": node.label}
            return f"{reverse('admin:django_skipqueue_job_changelist')}?{urlencode(query)}"
        return "" if node.id is None else reverse("admin:django_skipqueue_job_change", args=[node.id])


def _brief(callback: Callback) -> str:
    words = {"waits": gettext("waits"), "skipped": gettext("skipped"), "gone": gettext("deleted")}
    return words.get(callback.state) or str(Status(callback.state).label)


def _inner_node(batch: BatchState) -> Node:
    return Node(f"batch {batch.row.pk}", "batch", 0, name_of(batch.row), BADGES[batch.state], batch.row.pk)


def _callback_node(callback: Callback, layer: int) -> Node:
    job_id = None if callback.state == "gone" else callback.job_id
    status = CALLBACK_STATUS.get(callback.state, callback.state)
    return Node(callback.name, "callback", layer, callback.task, status, job_id)
