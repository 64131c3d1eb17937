"""What a user may do first with a cluster that has just started: commands that work as they are printed."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cli.pasted import gateway_words


def first_steps(gateway: str) -> Iterator[str]:
    """Yield the lines that suggest how to write a record to the cluster of ``gateway``, and how to read it. If
    ``gateway`` is "" the commands take it from the environment."""
    option = gateway_words(gateway) if gateway else ""
    yield "Try, in another terminal:"
    yield f"  tidelog topics create hello{option}"
    yield f"  printf 'hello\\n' | tidelog produce hello{option}"
    yield f"  tidelog consume hello --to-end{option}"
