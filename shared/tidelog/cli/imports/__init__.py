"""``tidelog import …``: copies topics from other systems."""

from __future__ import annotations

import click

from tidelog.cli.imports.kafka import kafka


@click.group("import")
def import_() -> None:
    """Import topics from another system: Kafka."""


import_.add_command(kafka)
