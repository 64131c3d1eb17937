"""The options of source and sink that the parts of a pipeline stand for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.spark.pipelines.declaration import DeclaredOutput, Input, Pipeline

STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options that say where a read begins, in lower case."""


def topics_of(declared: Input) -> tuple[str, ...]:
    """Return the names of the topics that an input reads; none if it has a pattern."""
    return tuple(name.strip() for name in declared.topic.split(",") if name.strip())


def reading_options(declared: Input) -> dict[str, str]:
    """Return the options by which an input is read: its topics, its own options, and ``earliest`` as the beginning if
    they name none."""
    which = {"subscribe": declared.topic} if declared.topic else {"subscribePattern": declared.subscribe_pattern}
    begins = any(name.lower() in STARTS for name in declared.options)
    return which | ({} if begins else {"startingOffsets": "earliest"}) | dict(declared.options)


def is_whole(declared: Input) -> bool:
    """Whether the table of an input has every record of its topics, with the columns of the source unchanged."""
    relaxed = {"failondataloss": "false", "onunreadable": "skip"}
    given = {name.lower(): text.strip().lower() for name, text in declared.options.items()}
    is_strict = not any(given.get(name) == text for name, text in relaxed.items())
    plain = not (declared.columns or declared.required or declared.valid)
    return declared.value == "raw" and plain and is_strict


def writing_options(pipeline: Pipeline, declared: DeclaredOutput) -> dict[str, str]:
    """Return the options by which an output's topic is written."""
    delivery, prefix = declared.delivery or pipeline.delivery, pipeline.security.app_prefix
    given = {"topic": declared.topic, "delivery": delivery, "appId": f"{prefix}{declared.name}" if prefix else ""}
    return {name: value for name, value in given.items() if value} | dict(declared.options)
