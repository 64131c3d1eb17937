"""``tidelog verify …``: whether a cluster keeps what it promises."""

from __future__ import annotations

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.verify.check import check
from tidelog.cli.verify.record import record
from tidelog.cli.verify.replicas import replicas

OLD = "--replicas"
"""An option of earlier releases: ``tidelog verify --replicas`` means ``tidelog verify replicas``."""


class _Verify(CommandGroup):
    """The command group ``tidelog verify``. It also accepts ``--replicas``, the option of earlier releases."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if OLD in args and args[0] not in self.commands:
            args = ["replicas", *(arg for arg in args if arg != OLD)]
        return super().parse_args(ctx, args)


@click.group(cls=_Verify)
def verify() -> None:
    """Check that a cluster keeps what it promises.

    'record' uses a running cluster while you kill, cut off and restart what you like, and writes down everything that
    its clients did and saw. 'check' checks such a file: nothing lost, nothing twice, nothing out of order, nothing
    stale. 'replicas' reads and compares the present copies of each partition."""


for _command in (record, check, replicas):
    verify.add_command(_command)
