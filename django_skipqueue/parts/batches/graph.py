"""Draw a batch as a graph in SVG: its jobs, the `after` dependencies between them, inner batches and callbacks. Pure.

At most `MOST_NODES` nodes show jobs. If the batch has more jobs, one node shows all jobs of one layer that have the
same task and status. If there are still too many nodes, one node shows all such jobs of all layers.

The columns of the picture are the layers of the graph, so every edge leads from left to right.
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
    """0 if the node waits for no other node, otherwise higher than the layers of all nodes that it waits for."""
    label: str
    """The task, or the name of the batch."""
    status: str
    id: int | None = None
    """The id of the job or batch; `None` for a node of several jobs, or a callback without a job."""
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
    """How many jobs the picture leaves out, because there are too many groups."""

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    def before(self, node: Node) -> list[Node]:
        return [self.by_name[edge.before] for edge in self.edges if edge.after == node.name]

    def followed_by(self, last_nodes: Sequence[Node]) -> "Graph":
        """Append these nodes to the graph. Each of them waits for all nodes that no other node waits for."""
        needed_names = {edge.before for edge in self.edges}
        end_names = [node.name for node in self.nodes if node.name not in needed_names]
        edges = [Edge(end, node.name) for node in last_nodes for end in end_names]
        return Graph([*self.nodes, *last_nodes], [*self.edges, *edges], self.hidden)


def graph_of(jobs: Iterable[GraphJob], needs: Iterable[tuple[int, int]]) -> Graph:
    """Make the graph of these jobs. `needs`: pairs of ids; the first job waits for the second."""
    sorted_jobs = sorted(jobs)
    known_ids = {job.id for job in sorted_jobs}
    edges = [(id, needed) for id, needed in needs if id in known_ids and needed in known_ids and needed < id]
    depths = _depths(sorted_jobs, edges)
    groupings: tuple[Callable[[GraphJob], Hashable], ...] = (  # from the finest to the coarsest
        lambda job: job.id,
        lambda job: (depths[job.id], job.task, job.status),
        lambda job: (job.task, job.status),
    )
    for group_key in groupings:
        groups: defaultdict[Hashable, list[GraphJob]] = defaultdict(list)
        for job in sorted_jobs:
            groups[group_key(job)].append(job)
        if len(groups) <= MOST_NODES:
            break
    return _folded(list(groups.values()), depths, edges)


def last_layer(graph: Graph) -> int:
    return max((node.layer for node in graph.nodes), default=-1) + 1


def _depths(jobs: Sequence[GraphJob], edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return each job's layer, by id: the length of the longest path to the job. Needed jobs have lower ids."""
    needed: defaultdict[int, list[int]] = defaultdict(list)
    for job_id, needed_id in edges:
        needed[job_id].append(needed_id)
    depths: dict[int, int] = {}
    for job in jobs:
        depths[job.id] = 1 + max((depths[needed_id] for needed_id in needed[job.id]), default=-1)
    return depths


def _folded(groups: list[list[GraphJob]], depths: Mapping[int, int], edges: Iterable[tuple[int, int]]) -> Graph:
    """Make a node for each group, and the edges between nodes that lead to a later layer."""
    groups.sort(key=lambda group: (-len(group), group[0].id))
    nodes: list[Node] = []
    node_of: dict[int, Node] = {}
    for group in groups[:MOST_NODES]:
        first, is_single = group[0], len(group) == 1
        layer = min(depths[job.id] for job in group)
        kind, name = ("job", f"job {first.id}") if is_single else ("jobs", f"jobs {first.id}")
        node = Node(name, kind, layer, first.task, first.status, first.id if is_single else None, len(group))
        nodes.append(node)
        node_of |= dict.fromkeys((job.id for job in group), node)
    folded_edges = Counter(
        Edge(node_of[needed_id].name, node_of[job_id].name)
        for job_id, needed_id in edges
        if needed_id in node_of and job_id in node_of and node_of[needed_id].layer < node_of[job_id].layer
    )
    nodes.sort(key=lambda node: (node.layer, node.label, node.status, node.name))
    hidden = sum(map(len, groups[MOST_NODES:]))
    return Graph(nodes, sorted(folded_edges), hidden)


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
    """The first line of text, cut to the node's width."""
    detail: str
    """The second line of text."""
    title: str
    """The full text, for tooltips and screen readers."""
    address: str
    """The URL that the node links to; empty if there is no link."""

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
        """The nodes of each layer, from top to bottom. A node is placed near the nodes that it waits for."""
        layers: defaultdict[int, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            layers[node.layer].append(node)
        needed_names: defaultdict[str, list[str]] = defaultdict(list)
        for edge in self.graph.edges:
            needed_names[edge.after].append(edge.before)
        rows: dict[str, float] = {}
        for layer in sorted(layers):
            layers[layer].sort(key=lambda node: fmean([rows[name] for name in needed_names[node.name]] or [0.0]))
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
        corners: dict[str, tuple[float, float]] = {}
        for index, column in enumerate(self.columns):
            top = (self.height - len(column) * (NODE_HEIGHT + GAP_Y) + GAP_Y) / 2
            for row, node in enumerate(column):
                corners[node.name] = (MARGIN + index * (NODE_WIDTH + GAP_X), top + row * (NODE_HEIGHT + GAP_Y))
        return corners

    @property
    def paths(self) -> list[str]:
        """The SVG path of each edge, with its arrowhead."""
        return [self._path(edge) for edge in self.graph.edges]

    def _path(self, edge: Edge) -> str:
        (before_x, before_y), (after_x, after_y) = self.places[edge.before], self.places[edge.after]
        x1, y1 = before_x + NODE_WIDTH, before_y + NODE_HEIGHT / 2
        x2, y2 = after_x, after_y + NODE_HEIGHT / 2
        bend = GAP_X / 2
        curve = f"M{x1:g},{y1:g}C{x1 + bend:g},{y1:g},{x2 - bend:g},{y2:g},{x2:g},{y2:g}"
        arrowhead = f"M{x2 - 6:g},{y2 - 4:g}L{x2:g},{y2:g}L{x2 - 6:g},{y2 + 4:g}"
        return curve + arrowhead


def cut(label: str) -> str:
    """Return the last part of a dotted name, the function, cut to the width of a node."""
    name = label.rpartition(".")[2] or label
    return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
