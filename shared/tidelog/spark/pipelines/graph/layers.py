"""Places the nodes of a graph in layers from left to right, so that edges lead to the right and seldom cross. Pure.

The steps are those of Sugiyama: a node's layer is the length of the longest way to it; an edge over several layers
gets a bend in each of them, which takes room as a node does; nodes and bends of a layer are sorted by the middle of
their neighbours, and moved towards it as far as the others let them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWEEPS = 8
BEND_HEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: for each node its layer and the middle of its height, and for each edge the height of its
    bends, from left to right."""

    layers: tuple[int, ...]
    middles: tuple[float, ...]
    bends: Mapping[tuple[int, int], tuple[float, ...]]


def place(heights: Sequence[float], edges: Sequence[tuple[int, int]], gap: float) -> Layout:
    """Return the layout of nodes with these heights and edges (pairs of their numbers), with ``gap`` between two
    nodes of a layer. Edges of a circle that lead back to an earlier layer have no bends."""
    layers = _layers(len(heights), edges)
    sizes = [*heights]
    at = [*layers]
    links: list[tuple[int, int]] = []
    bends: dict[tuple[int, int], list[int]] = {}
    for start, end in dict.fromkeys(edges):
        chain = bends[start, end] = []
        before = start
        for layer in range(layers[start] + 1, layers[end]):
            sizes.append(BEND_HEIGHT)
            at.append(layer)
            chain.append(len(at) - 1)
            links.append((before, chain[-1]))
            before = chain[-1]
        if layers[start] < layers[end]:
            links.append((before, end))
    middles = _middles(sizes, at, links, gap)
    top = min((middle - size / 2 for middle, size in zip(middles, sizes, strict=True)), default=0.0)
    placed = [middle - top for middle in middles]
    return Layout(
        tuple(layers),
        tuple(placed[: len(heights)]),
        {edge: tuple(placed[bend] for bend in chain) for edge, chain in bends.items()},
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: one more than the highest of those that it comes from. An edge that closes a
    circle counts for nothing."""
    before: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        before[end].append(start)
    layers = [-1] * count
    open_nodes: set[int] = set()

    def layer(node: int) -> int:
        if layers[node] < 0:
            open_nodes.add(node)
            layers[node] = max((layer(one) + 1 for one in before[node] if one not in open_nodes), default=0)
            open_nodes.remove(node)
        return layers[node]

    for node in range(count):
        layer(node)
    return layers


def _middles(
    sizes: Sequence[float], layers: Sequence[int], links: Sequence[tuple[int, int]], gap: float
) -> list[float]:
    """Return the middle of the height of all nodes and bends."""
    rows = [[node for node, at in enumerate(layers) if at == layer] for layer in range(max(layers, default=-1) + 1)]
    left: list[list[int]] = [[] for _ in layers]
    right: list[list[int]] = [[] for _ in layers]
    for start, end in links:
        left[end].append(start)
        right[start].append(end)
    middles = [0.0] * len(layers)
    for row in rows:
        _spread(row, [0.0] * len(row), middles, sizes, gap)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for row in rows if forward else reversed(rows):
            near = left if forward else right
            wanted = {node: _mean([middles[one] for one in near[node]], middles[node]) for node in row}
            row.sort(key=wanted.__getitem__)
            _spread(row, [wanted[node] for node in row], middles, sizes, gap)
    return middles


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _spread(
    row: Sequence[int], wanted: Sequence[float], middles: list[float], sizes: Sequence[float], gap: float
) -> None:
    """Give the nodes of a layer, from the top, the places next to the wanted ones at which none touches another.
    Nodes that push each other are a block, whose middle is the mean of what its nodes want."""
    blocks: list[tuple[list[int], float, float]] = []  # nodes, sum of the wanted tops, height with gaps
    for node, want in zip(row, wanted, strict=True):
        nodes, tops, height = [node], want - sizes[node] / 2, sizes[node] + gap
        while blocks:
            above, above_tops, above_height = blocks[-1]
            if above_tops / len(above) + above_height <= tops / len(nodes):
                break
            blocks.pop()
            tops += above_tops - above_height * len(nodes)
            nodes, height = above + nodes, above_height + height
        blocks.append((nodes, tops, height))
    for nodes, tops, _ in blocks:
        top = tops / len(nodes)
        for node in nodes:
            middles[node] = top + sizes[node] / 2
            top += sizes[node] + gap
