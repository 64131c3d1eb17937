"""``tidelog completion``: the shell completes commands, options, topics, partitions and contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from tidelog.cli.connection_options import settings_of
from tidelog.cli.main import connect, main
from tidelog.errors import TidelogError
from tidelog.types import INTERNAL_PREFIX

if TYPE_CHECKING:
    from tidelog.wire.messages import TopicInfo

ASK_S = 1.5
"""Longest time in seconds that a completion waits for a gateway."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which the shell completes commands, options and, if a gateway answers, topics.

    \b
    bash: eval "$(tidelog completion bash)"      in ~/.bashrc
    zsh:  eval "$(tidelog completion zsh)"       in ~/.zshrc, after compinit
    fish: tidelog completion fish | source       in ~/.config/fish/config.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    from tidelog.cli.output import say

    for line in made(main, {}, "tidelog", "_TIDELOG_COMPLETE").source().splitlines():
        say(line)


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of a topic's name for the shell: the cluster's topics that begin with ``incomplete``.
    The cluster's own topics are left out unless ``incomplete`` begins with ``_``. An empty list if no gateway answers
    within ``ASK_S``."""
    return [CompletionItem(topic.name) for topic in _known(ctx, incomplete)]


def places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of ``TOPIC/PARTITION`` for the shell: the partitions of the cluster's topics that begin
    with ``incomplete``. An empty list if no gateway answers within ``ASK_S``."""
    name, slash, number = incomplete.partition("/")
    found = [
        f"{topic.name}/{partition.partition}"
        for topic in _known(ctx, name)
        for partition in topic.partitions
        if not slash or (topic.name == name and str(partition.partition).startswith(number))
    ]
    return [CompletionItem(place) for place in found]


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of a context's name for the shell. An empty list if the contexts cannot be read."""
    from tidelog.cli.contexts import load

    try:
        found = load().by_name
    except TidelogError:
        return []
    return [
        CompletionItem(name, help=" ".join(c.gateways)) for name, c in found.items() if name.startswith(incomplete)
    ]


def _known(ctx: click.Context, beginning: str) -> Iterator[TopicInfo]:
    """Ask a gateway for its topics, and yield those whose name begins with ``beginning``. The cluster's own topics
    are left out unless ``beginning`` begins with ``_``."""
    for topic in _ask(ctx):
        hidden = topic.name.startswith(INTERNAL_PREFIX) and not beginning.startswith("_")
        if topic.name.startswith(beginning) and not hidden:
            yield topic


def _ask(ctx: click.Context) -> tuple[TopicInfo, ...]:
    """Ask a gateway for all topics of the cluster, and return them. An empty tuple if no gateway answers within
    ``ASK_S``, or the request fails, since a completion reports no errors."""
    import trio

    async def task() -> tuple[TopicInfo, ...]:
        with trio.move_on_after(ASK_S):
            async with connect(settings_of(ctx).gateways) as log:
                return await log.topics.list()
        return ()

    found: tuple[TopicInfo, ...] = ()
    with ctx.scope(cleanup=False):
        try:
            found = trio.run(task)
        except* TidelogError:
            found = ()
    return found
