"""Where the nodes of a graph are placed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tidelog.spark.pipelines.graph.layers import BEND_HEIGHT, place

GAP = 10.0


def test_a_chain_is_a_straight_line() -> None:
    layout = place([40.0, 40.0, 40.0], [(0, 1), (1, 2)], GAP)
    assert (layout.layers, layout.middles) == ((0, 1, 2), (20.0, 20.0, 20.0))


def test_a_fork_is_in_the_middle_of_its_ends() -> None:
    layout = place([40.0] * 3, [(0, 1), (0, 2)], GAP)
    assert (layout.layers, layout.middles) == ((0, 1, 1), (45.0, 20.0, 70.0))


def test_nodes_are_sorted_so_that_edges_do_not_cross() -> None:
    layout = place([40.0] * 4, [(0, 3), (1, 2)], GAP)
    assert (layout.middles[0] < layout.middles[1]) == (layout.middles[3] < layout.middles[2])


def test_an_edge_over_a_layer_bends_beside_its_nodes() -> None:
    layout = place([40.0] * 3, [(0, 1), (1, 2), (0, 2)], GAP)
    (bend,) = layout.bends[0, 2]
    assert abs(bend - layout.middles[1]) >= (40 + BEND_HEIGHT) / 2 + GAP


def test_a_circle_has_a_layout() -> None:
    assert place([40.0] * 3, [(0, 1), (1, 2), (2, 1)], GAP).bends[2, 1] == ()
    assert place([], [], GAP).layers == ()


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(
    st.lists(st.floats(10, 60), min_size=n, max_size=n),
    st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=16),
)))  # fmt: skip
def test_nothing_overlaps_and_edges_lead_to_the_right(drawn: tuple[list[float], list[tuple[int, int]]]) -> None:
    heights, edges = drawn
    edges = [(a, b) for a, b in edges if a < b]
    layout = place(heights, edges, GAP)
    assert all(layout.layers[a] < layout.layers[b] for a, b in edges)
    for layer in set(layout.layers):
        spans = [
            (middle - height / 2, middle + height / 2)
            for middle, height, at in zip(layout.middles, heights, layout.layers, strict=True)
            if at == layer
        ]
        for (a, b), bends in layout.bends.items():
            if layout.layers[a] < layer < layout.layers[b]:
                bend = bends[layer - layout.layers[a] - 1]
                spans.append((bend - BEND_HEIGHT / 2, bend + BEND_HEIGHT / 2))
        assert all(below[0] - above[1] >= GAP - 1e-6 for above, below in pairwise(sorted(spans)))
        assert min(spans)[0] >= -1e-6
