"""Draws the graph of a pipeline as an SVG that needs no other file, for light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

from tidelog.spark.pipelines.graph.layers import place
from tidelog.spark.pipelines.graph.parts import Graph, Part

HEIGHT, GAP_X, GAP_Y, MARGIN, PADDING = 46.0, 56.0, 18.0, 16.0, 12.0
TITLE_HEIGHT = 30.0
MAX_CHARACTERS = 44
"""Longest text of a part; of a longer one the beginning is shown, and all of it where the mouse rests."""
STYLE = """
.page { fill: #ffffff } text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
.head { font-size: 14px; font-weight: 600; fill: #1f2933 } .name { font-size: 13px; font-weight: 600; fill: #1f2933 }
.detail { font-size: 11px; fill: #52606d } .flow { fill: none; stroke: #7b8794; stroke-width: 1.5 }
.tip { fill: #7b8794 } rect.part { stroke-width: 1.5 }
.topic { fill: #e6f1fb; stroke: #2b77c0 } .input, .table { fill: #f5f7fa; stroke: #7b8794 }
.output { fill: #e7f6ec; stroke: #2f8f57 } .bad { fill: #fdeeea; stroke: #c8452f }
.plot { fill: #f3ecfb; stroke: #7d4fb3 }
@media (prefers-color-scheme: dark) {
.page { fill: #14181d } .head, .name { fill: #eef2f6 } .detail { fill: #aab6c2 }
.flow { stroke: #8795a3 } .tip { fill: #8795a3 }
.topic { fill: #14304d; stroke: #5ba3e6 } .input, .table { fill: #242b33; stroke: #8795a3 }
.output { fill: #143a26; stroke: #55bd82 } .bad { fill: #45201a; stroke: #ee7b65 }
.plot { fill: #33244a; stroke: #b08be0 }
}
""".strip()


def svg(graph: Graph) -> str:
    """Return the picture of a graph as the text of an SVG file."""
    layout = place([HEIGHT] * len(graph.parts), graph.flows, GAP_Y)
    lefts, widths = _columns(graph.parts, layout.layers)
    top = MARGIN + TITLE_HEIGHT
    lines = []
    for start, end in dict.fromkeys(graph.flows):
        last = lefts[layout.layers[start]] + widths[layout.layers[start]]
        points = [(last, top + layout.middles[start])]
        for layer, bend in enumerate(layout.bends[start, end], layout.layers[start] + 1):
            points += [(lefts[layer], top + bend), (lefts[layer] + widths[layer], top + bend)]
        points.append((lefts[layout.layers[end]] - 7, top + layout.middles[end]))
        lines.append(f'<path class="flow" d="{_curve(points)}" marker-end="url(#tip)"/>')
    for number, part in enumerate(graph.parts):
        layer = layout.layers[number]
        lines.append(_box(part, lefts[layer], top + layout.middles[number] - HEIGHT / 2, widths[layer]))
    right = max((left + width for left, width in zip(lefts, widths, strict=True)), default=MARGIN)
    bottom = top + max((middle + HEIGHT / 2 for middle in layout.middles), default=0.0)
    for bends in layout.bends.values():
        bottom = max(bottom, *(top + bend for bend in bends), bottom)
    width, height = max(right, MARGIN + _width(graph.title, 8.6)) + MARGIN, bottom + MARGIN
    title, size = escape(graph.title), f'width="{width:.0f}" height="{height:.0f}"'
    label = _attribute(f"Pipeline {graph.title}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}" '
            f'role="img" aria-label="{label}">',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="1" refY="4" orient="auto">'
            '<path class="tip" d="M0,0.5 L7,4 L0,7.5 z"/></marker></defs>',
            f'<rect class="page" {size}/>',
            f'<text class="head" x="{MARGIN:.0f}" y="{MARGIN + 12:.0f}">{title}</text>',
            *lines,
            "</svg>\n",
        ]
    )


def _columns(parts: Sequence[Part], layers: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the left side and the width of every layer, which are those of its widest part."""
    lefts: list[float] = []
    widths: list[float] = []
    left = MARGIN
    for layer in range(max(layers, default=-1) + 1):
        here = [part for part, at in zip(parts, layers, strict=True) if at == layer]
        texts = [max(_width(part.name, 8.0), _width(part.detail, 6.4)) for part in here]
        lefts.append(left)
        widths.append(max(texts, default=0.0) + 2 * PADDING)
        left += widths[-1] + GAP_X
    return lefts, widths


def _width(text: str, of_character: float) -> float:
    """Return about how wide a text is. Characters of East Asia are twice as wide as others."""
    return sum(of_character * (1 if ord(c) < 0x1100 else 2) for c in _short(text))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return the path of a line through points: level at each, and curved between two columns."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x0 + x1) / 2
        path += f" C{half:.1f},{y0:.1f} {half:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return path


def _box(part: Part, left: float, top: float, width: float) -> str:
    """Return the box of a part, with its name and what else is to be said."""
    x = left + PADDING
    return (
        f"<g><title>{escape(part.name)}\n{escape(part.detail)}</title>"
        f'<rect class="part {part.kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{HEIGHT:.0f}" '
        f'rx="6"/>'
        f'<text class="name" x="{x:.1f}" y="{top + 20:.1f}">{escape(_short(part.name))}</text>'
        f'<text class="detail" x="{x:.1f}" y="{top + 36:.1f}">{escape(_short(part.detail))}</text></g>'
    )


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
