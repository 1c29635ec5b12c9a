"""The graph as SVG: where each node stands, and the paths of the edges. Pure.

Invariant: the columns are the layers of the graph, so every edge leads from left to right.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .graph import Edge, Graph, Node

WIDTH, HEIGHT = 190, 44
"""Of a node, in pixels."""

GAP_X, GAP_Y = 56, 12

MARGIN = 2

LABEL_CHARACTERS = 26


@dataclass(frozen=True)
class DrawnNode:
    node: Node
    x: float
    y: float
    label: str
    """Its first line, cut."""
    detail: str
    """Its second line."""
    title: str
    """All that it says, for the mouse and for screen readers."""
    address: str
    """Where it leads; empty: nowhere."""

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
        """The nodes of each layer, from top to bottom: near those that they wait for."""
        layers: defaultdict[int, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            layers[node.layer].append(node)
        before: defaultdict[str, list[str]] = defaultdict(list)
        for edge in self.graph.edges:
            before[edge.after].append(edge.before)
        rows: dict[str, float] = {}
        for layer in sorted(layers):
            layers[layer].sort(key=lambda node: _middle([rows[name] for name in before[node.name]]))
            rows |= {node.name: row for row, node in enumerate(layers[layer])}
        return [layers[layer] for layer in sorted(layers)]

    @property
    def width(self) -> int:
        """Of the drawing, in pixels."""
        return len(self.columns) * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN

    @property
    def height(self) -> int:
        """Of the drawing, in pixels."""
        return max(map(len, self.columns), default=0) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN

    @cached_property
    def places(self) -> dict[str, tuple[float, float]]:
        """The upper left corner of each node. A short column stands in the middle."""
        found: dict[str, tuple[float, float]] = {}
        for number, column in enumerate(self.columns):
            top = (self.height - len(column) * (HEIGHT + GAP_Y) + GAP_Y) / 2
            for row, node in enumerate(column):
                found[node.name] = (MARGIN + number * (WIDTH + GAP_X), top + row * (HEIGHT + GAP_Y))
        return found

    @property
    def paths(self) -> list[str]:
        return [self._path(edge) for edge in self.graph.edges]

    def _path(self, edge: Edge) -> str:
        (left, top), (right, bottom) = self.places[edge.before], self.places[edge.after]
        x1, y1, x2, y2 = left + WIDTH, top + HEIGHT / 2, right, bottom + HEIGHT / 2
        middle = GAP_X / 2
        curve = f"M{x1:g},{y1:g}C{x1 + middle:g},{y1:g},{x2 - middle:g},{y2:g},{x2:g},{y2:g}"
        return f"{curve}M{x2 - 6:g},{y2 - 4:g}L{x2:g},{y2:g}L{x2 - 6:g},{y2 + 4:g}"


def cut(label: str) -> str:
    """The end of a name, as much as fits into a node: the function is more telling than the module."""
    name = label.rpartition(".")[2] or label
    return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"


def _middle(rows: Sequence[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0
