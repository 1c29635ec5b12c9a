"""The picture of a batch as a graph: jobs, edges of `after` between them, inner batches and callbacks; as SVG. Pure.

Invariant: there are at most `MOST_NODES` nodes of jobs. If the batch has more jobs, one node shows the jobs of one
layer that have the same task and status. If there are still too many nodes, one node shows such jobs of all layers.

Invariant: the columns are the layers of the graph, so every edge leads from left to right.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

MOST_NODES = 40


class GraphJob(NamedTuple):
    id: int
    task: str
    status: str


@dataclass(frozen=True)
class Node:
    name: str
    """Unique in the graph."""
    kind: str
    """`job`, `jobs`, `batch` or `callback`."""
    layer: int
    """0: the node waits for no other node. A node has a higher layer than the nodes for which it waits."""
    label: str
    """The task, or the name of the batch."""
    status: str
    id: int | None = None
    """The id of the job or the batch; `None`: several jobs, or a callback without a job."""
    number: int = 1
    """How many jobs the node shows."""


class Edge(NamedTuple):
    """The node `after` waits for the node `before`."""

    before: str
    after: str


@dataclass(frozen=True)
class Graph:
    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()
    hidden: int = 0
    """How many jobs are not in the picture, because there are too many groups."""

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    def before(self, node: Node) -> list[Node]:
        return [self.by_name[edge.before] for edge in self.edges if edge.after == node.name]

    def followed_by(self, last: Sequence[Node]) -> "Graph":
        """The graph with these nodes at its end. Each waits for every node for which no other node waits."""
        waited_for = {edge.before for edge in self.edges}
        ends = [node.name for node in self.nodes if node.name not in waited_for]
        edges = [Edge(end, node.name) for node in last for end in ends]
        return Graph([*self.nodes, *last], [*self.edges, *edges], self.hidden)


def graph_of(jobs: Iterable[GraphJob], needs: Iterable[tuple[int, int]]) -> Graph:
    """The graph of these jobs. needs: pairs of ids; the first job waits for the second job."""
    listed = sorted(jobs)
    known = {job.id for job in listed}
    edges = [(job, needed) for job, needed in needs if job in known and needed in known and needed < job]
    depths = _depths(listed, edges)
    ways: tuple[Callable[[GraphJob], Hashable], ...] = (
        lambda job: job.id,
        lambda job: (depths[job.id], job.task, job.status),
        lambda job: (job.task, job.status),
    )
    for way in ways:
        groups: defaultdict[Hashable, list[GraphJob]] = defaultdict(list)
        for job in listed:
            groups[way(job)].append(job)
        if len(groups) <= MOST_NODES:
            break
    return _folded(list(groups.values()), depths, edges)


def last_layer(graph: Graph) -> int:
    return max((node.layer for node in graph.nodes), default=-1) + 1


def _depths(jobs: Sequence[GraphJob], edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """For each job the number of jobs before it on the longest way. Ids ascend: a job is inserted after its needs."""
    needed: defaultdict[int, list[int]] = defaultdict(list)
    for job, before in edges:
        needed[job].append(before)
    depths: dict[int, int] = {}
    for each in jobs:
        depths[each.id] = 1 + max((depths[before] for before in needed[each.id]), default=-1)
    return depths


def _folded(groups: list[list[GraphJob]], depths: Mapping[int, int], edges: Iterable[tuple[int, int]]) -> Graph:
    """A node for each group, and the edges between nodes that lead from a layer to a later layer."""
    groups.sort(key=lambda group: (-len(group), group[0].id))
    nodes: list[Node] = []
    node_of: dict[int, Node] = {}
    for group in groups[:MOST_NODES]:
        first, is_one = group[0], len(group) == 1
        layer = min(depths[job.id] for job in group)
        kind, name = ("job", f"job {first.id}") if is_one else ("jobs", f"jobs {first.id}")
        node = Node(name, kind, layer, first.task, first.status, first.id if is_one else None, len(group))
        nodes.append(node)
        node_of |= dict.fromkeys((job.id for job in group), node)
    found = Counter(
        Edge(node_of[before].name, node_of[job].name)
        for job, before in edges
        if before in node_of and job in node_of and node_of[before].layer < node_of[job].layer
    )
    nodes.sort(key=lambda node: (node.layer, node.label, node.status, node.name))
    return Graph(nodes, sorted(found), sum(map(len, groups[MOST_NODES:])))


NODE_WIDTH, NODE_HEIGHT = 190, 44
"""The size of a node in pixels."""

GAP_X, GAP_Y = 56, 12

MARGIN = 2

LABEL_CHARACTERS = 26


@dataclass(frozen=True)
class DrawnNode:
    node: Node
    x: float
    y: float
    label: str
    """The first line of text, cut."""
    detail: str
    """The second line of text."""
    title: str
    """The full text, for the mouse and for screen readers."""
    address: str
    """The address to which the node links; empty: no link."""

    @property
    def text_x(self) -> float:
        return self.x + 10

    @property
    def baselines(self) -> tuple[float, float]:
        return self.y + 18, self.y + 35


@dataclass(frozen=True)
class Drawing:
    graph: Graph

    @cached_property
    def columns(self) -> list[list[Node]]:
        """The nodes of each layer, from top to bottom: each near the nodes for which it waits."""
        layers: defaultdict[int, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            layers[node.layer].append(node)
        before: defaultdict[str, list[str]] = defaultdict(list)
        for edge in self.graph.edges:
            before[edge.after].append(edge.before)
        rows: dict[str, float] = {}
        for layer in sorted(layers):
            layers[layer].sort(key=lambda node: fmean([rows[name] for name in before[node.name]] or [0.0]))
            rows |= {node.name: row for row, node in enumerate(layers[layer])}
        return [layers[layer] for layer in sorted(layers)]

    @property
    def width(self) -> int:
        return len(self.columns) * (NODE_WIDTH + GAP_X) - GAP_X + 2 * MARGIN

    @property
    def height(self) -> int:
        return max(map(len, self.columns), default=0) * (NODE_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN

    @cached_property
    def places(self) -> dict[str, tuple[float, float]]:
        """The upper left corner of each node. A short column is centered."""
        found: dict[str, tuple[float, float]] = {}
        for number, column in enumerate(self.columns):
            top = (self.height - len(column) * (NODE_HEIGHT + GAP_Y) + GAP_Y) / 2
            for row, node in enumerate(column):
                found[node.name] = (MARGIN + number * (NODE_WIDTH + GAP_X), top + row * (NODE_HEIGHT + GAP_Y))
        return found

    @property
    def paths(self) -> list[str]:
        return [self._path(edge) for edge in self.graph.edges]

    def _path(self, edge: Edge) -> str:
        (left, top), (right, bottom) = self.places[edge.before], self.places[edge.after]
        x1, y1, x2, y2 = left + NODE_WIDTH, top + NODE_HEIGHT / 2, right, bottom + NODE_HEIGHT / 2
        middle = GAP_X / 2
        curve = f"M{x1:g},{y1:g}C{x1 + middle:g},{y1:g},{x2 - middle:g},{y2:g},{x2:g},{y2:g}"
        return f"{curve}M{x2 - 6:g},{y2 - 4:g}L{x2:g},{y2:g}L{x2 - 6:g},{y2 + 4:g}"


def cut(label: str) -> str:
    """The last part of a dotted name, as far as it fits into a node: the function says more than the module."""
    name = label.rpartition(".")[2] or label
    return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
