"""``tidelog help``: explains a command, or the options of the connection."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from tidelog.cli.connection_options import OPTIONS, PRECEDENCE, ConnectionOption
from tidelog.cli.main import main
from tidelog.cli.output import say

CONNECTION = "connection"
"""The name of the help page that does not explain a command."""


def _next_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of the next word for the shell: the commands of the group that the words before name."""
    words = ctx.params.get("words") or ()
    pages = [CompletionItem(CONNECTION)] if not words and CONNECTION.startswith(incomplete) else []
    try:
        command, context = _found(words)
    except click.UsageError:
        return []
    if not isinstance(command, click.Group) or incomplete.startswith("-"):
        return pages
    return pages + command.shell_complete(context, incomplete)


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...", shell_complete=_next_words)
def help(words: tuple[str, ...]) -> None:
    """Explain a command, as its --help does: 'tidelog help topics create'. 'tidelog help connection' explains the
    options by which every command finds the cluster and identifies itself."""
    if words == (CONNECTION,):
        text = connection_page(click.get_current_context())
    else:
        try:
            command, context = _found(words)
        except click.NoSuchCommand as error:
            known = (*(error.possibilities or ()), *((CONNECTION,) if len(words) == 1 else ()))
            raise click.NoSuchCommand(error.command_name, possibilities=known, ctx=error.ctx) from None
        text = command.get_help(context)
    for line in text.splitlines():
        say(line)


def connection_page(ctx: click.Context) -> str:
    """Return the text of ``tidelog help connection``, as wide as the terminal of ``ctx``."""
    formatter = ctx.make_formatter()
    formatter.write_text("The options by which a command finds the cluster and identifies itself.")
    formatter.write_paragraph()
    formatter.write_text(PRECEDENCE)
    with formatter.section("Options"):
        formatter.write_dl([ConnectionOption(field=field).full_help_record(ctx) for field in OPTIONS])
    return formatter.getvalue().rstrip("\n")


def _found(words: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    """Return the command that these words name, and a context for its help. Raises ``click.UsageError``, which
    suggests similar ones, if there is no such command."""
    command: click.Command = main
    context = click.Context(main, info_name="tidelog", **main.context_settings)
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"'{context.command_path}' has no sub-commands", context)
        _, found, _ = command.resolve_command(context, [word])
        assert found is not None
        command, context = found, click.Context(found, info_name=word, parent=context, **found.context_settings)
    return command, context
