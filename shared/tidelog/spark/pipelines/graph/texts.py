"""Writes the graph of a pipeline as text: lines for people, and a diagram for Mermaid. Pure."""

from __future__ import annotations

from tidelog.spark.pipelines.graph.parts import Graph

_CLASSES = {
    "topic": "fill:#e6f1fb,stroke:#2b77c0,color:#1f2933",
    "output": "fill:#e7f6ec,stroke:#2f8f57,color:#1f2933",
    "bad": "fill:#fdeeea,stroke:#c8452f,color:#1f2933",
    "plot": "fill:#f3ecfb,stroke:#7d4fb3,color:#1f2933",
}


def lines(graph: Graph) -> str:
    """Return a line for each part: its name, what it is, and the parts that it gets its rows from."""
    written = []
    for number, part in enumerate(graph.parts):
        sources = [graph.parts[start].name for start, end in graph.flows if end == number]
        written.append(f"{part.name} ({part.detail})" + (f" <- {', '.join(sources)}" if sources else ""))
    return "\n".join(written) + "\n"


def mermaid(graph: Graph) -> str:
    """Return a flowchart of Mermaid, which Markdown pages of many sites draw."""
    written = ["flowchart LR"]
    for number, part in enumerate(graph.parts):
        left, right = ("([", "])") if part.kind in ("topic", "bad") else ("[", "]")
        label = f"{_escaped(part.name)}<br><small>{_escaped(part.detail)}</small>"
        written.append(f'  n{number}{left}"{label}"{right}')
    written += [f"  n{start} --> n{end}" for start, end in dict.fromkeys(graph.flows)]
    for kind, style in _CLASSES.items():
        if numbers := [f"n{number}" for number, part in enumerate(graph.parts) if part.kind == kind]:
            written += [f"  classDef {kind} {style}", f"  class {','.join(numbers)} {kind}"]
    return "\n".join(written) + "\n"


def _escaped(text: str) -> str:
    """Return a text as Mermaid shows it in a label."""
    return "".join(c if c.isalnum() or c in " .,·_-/:+()…" else f"#{ord(c)};" for c in text)
