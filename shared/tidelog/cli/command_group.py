"""``CommandGroup``, the class of every group of commands: it takes the options of the connection, too."""

from __future__ import annotations

import click

from tidelog.cli.connection_options import OPTIONS, ConnectionOption


class CommandGroup(click.Group):
    """A group of commands, such as ``tidelog topics``. If one of its commands talks to a cluster, the group takes the
    options of the connection, too, so that they may stand before the name of the command."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of the group itself."""
        return [*self._connection_options(), *super().get_params(ctx)]

    def _connection_options(self) -> list[click.Parameter]:
        """Return the options of the connection; none if no command of the group has them."""
        params = (param for command in self.commands.values() for param in command.params)
        if not any(isinstance(param, ConnectionOption) for param in params):
            return []
        return [ConnectionOption(field=field) for field in OPTIONS]
