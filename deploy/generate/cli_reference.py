"""The reference of the ``tidelog`` command (``docs/cli.md``), from the help of its commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from tidelog.cli.connection_options import OPTIONS, PRECEDENCE, ConnectionOption
from tidelog.cli.exit_status import EXIT_CODES
from tidelog.cli.main import SECTIONS, main

HEAD = (
    "# The command `tidelog`\n\n"
    "Generated from the code by `make pages`; the same as `--help` of each command. An error "
    "goes to stderr with its [code](errors.md) and the next step; progress goes there too, where it is a terminal."
)
OUTPUT = (
    "## Output\n\n"
    "Commands that print a list or a description have `-o`, or `--output`; `--help` says with which values:\n\n"
    "| value | what is printed |\n|---|---|\n"
    "| none | a table or text for people |\n"
    "| `wide` | the same with ids, such as those of topics |\n"
    "| `json` | a document with everything; `--json` is the same |\n"
    "| `tsv` | a line with the names of the columns, then a line for each row, with tabs between the columns |\n"
    "| `names` | the name of each row on a line of its own, as other commands take it, such as `orders/0` |\n\n"
    "On a terminal that is too narrow for a table its widest columns are wrapped. In a pipe or a file nothing is "
    "wrapped. Nothing is ever cut.\n\n"
    "In JSON numbers and truth values are written as such, settings of topics too. In `tsv` lists have commas, "
    "truth values are `true` and `false`, and a tab, a line break or a backslash in a value is written as `\\t`, "
    "`\\n` or `\\\\`. Numbers that are not known are -1. Only `json` is complete: `tsv` has the columns of the "
    "table, and none of the text around it.\n\n"
    "```sh\n"
    "tidelog topics list -o names | xargs -n1 tidelog topics describe\n"
    "tidelog partitions list -o tsv | cut -f1,2                          # partitions and their leaders\n"
    "tidelog topics describe orders -o json | jq .config.retention_ms    # 604800000\n"
    "```"
)
QUANTITIES = (
    "## Durations, sizes and counts\n\n"
    "Options and settings take them as people write them, and `KEY=VALUE` of topics does, too: "
    "`--config retention_ms=7d`. A number without a unit counts what the setting counts, which its name says: "
    "`retention_ms=5000` is 5,000 milliseconds, `--timeout 90` 90 seconds.\n\n"
    "| what | units |\n|---|---|\n"
    "| durations | `ms`, `s`, `m` or `min`, `h`, `d`, `w` |\n"
    "| sizes, and rates with `/s` behind or without | `KiB`, `MiB`, `GiB`, `TiB`, `PiB`, and `k`, `m`, `g`, `t`, "
    "`p`: powers of 1,024; `kB`, `MB`, `GB`, `TB`, `PB`: powers of 1,000; `B` |\n"
    "| counts | `k`, `M`, `G`: powers of 1,000 |\n\n"
    "Case does not matter. A fraction such as `1.5h` is taken if it is exact in the setting's unit. `describe` and "
    "JSON show the number; for people a larger unit stands beside: `retention_ms = 604800000 (7d)`."
)
COMPLETION = (
    "## Shell completion\n\n"
    "Commands, options and, where the gateway answers, topics and partitions:\n\n"
    "```sh\n"
    'eval "$(tidelog completion bash)"      # in ~/.bashrc\n'
    'eval "$(tidelog completion zsh)"       # in ~/.zshrc, after compinit\n'
    "tidelog completion fish | source       # in ~/.config/fish/config.fish\n"
    "```\n\n"
    "It asks the gateway that `--gateway` or `TIDELOG_GATEWAY` names, and gives up after 1.5 s."
)
CONNECTION = (
    "Where it says *connection options*: how the command reaches the cluster, and how it identifies itself. "
    + re.sub(r"'(tidelog [^']+)'", r"`\1`", PRECEDENCE)
    + " [Contexts](#tidelog-context) are names for clusters."
)
SAID = re.compile(r"  \[default: (.*)\]$")
PLAIN = {"integer", "integer range", "float", "float range", "text", "boolean", "file", "path", "directory"}


def page() -> str:
    """Return the whole page."""
    codes = ["## Exit codes", "", "| code | meaning | commands |", "|---|---|---|"]
    codes += [f"| {code} | {meaning} | {commands} |" for code, meaning, commands in EXIT_CODES]
    connection = [ConnectionOption(field=field) for field in OPTIONS]
    options = ["## Connection options", "", CONNECTION, "", *_options(connection)]
    about = [HEAD, _sections(), OUTPUT, QUANTITIES, "\n".join(codes), "\n".join(options), COMPLETION]
    return "\n\n".join([*about, *_commands(main, "tidelog")]) + "\n"


def _sections() -> str:
    """Return the table of all commands, by section."""
    lines = ["| section | commands |", "|---|---|"]
    for title, section in SECTIONS.items():
        links = ", ".join(f"[{name}](#tidelog-{name})" for name in section)
        lines.append(f"| {title} | {links} |")
    return "\n".join(lines)


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}"
        yield f"{'##' if group is main else '###'} {full}"
        if isinstance(command, click.Group):
            yield _help(command)
            yield from _commands(command, full)
        else:
            yield from _command(command, full)


def _command(command: click.Command, full: str) -> Iterator[str]:
    pieces = command.collect_usage_pieces(click.Context(command, info_name=full))
    yield f"`{' '.join([full, *pieces])}`"
    yield _help(command)
    own = [param for param in command.params if not isinstance(param, ConnectionOption)]
    table = _options(own)
    if len(own) < len(command.params):
        table.append("| *connection options* | | [above](#connection-options) |")
    if len(table) > 2:
        yield "\n".join(table)


def _options(params: list[click.Parameter]) -> list[str]:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for option in params:
        if isinstance(option, click.Option) and not option.hidden:
            lines.append(f"| `{_name(option)}` | {_default(option)} | {_meaning(option)} |".replace("|  |", "| |"))
    return lines


def _name(option: click.Option) -> str:
    value = option.metavar or option.type.name.upper()
    if isinstance(option.type, click.Choice):
        value = "/".join(map(str, option.type.choices))
    elif option.metavar is None and option.type.name in PLAIN:
        value = option.type.name.removesuffix(" range").upper()
    text = ", ".join([*option.opts, *option.secondary_opts])
    return text if option.is_flag else f"{text} {value}".replace("|", "/")


def _default(option: click.Option) -> str:
    """Return the default of an option as text, also one that its help states in words; "" if there is none."""
    if said := SAID.search(option.help or ""):
        return said[1]
    default = option.default
    if option.is_flag or default in (None, "", ()) or not option.show_default:
        return ""
    return "`" + (", ".join(map(str, default)) if isinstance(default, tuple | list) else str(default)) + "`"


def _meaning(option: click.Option) -> str:
    help = SAID.sub("", option.help or "")
    parts = [help, "Repeatable." if option.multiple and not re.search("repeat|several", help) else ""]
    if isinstance(option.envvar, str):
        parts.append(f"Environment: `{option.envvar}`.")
    return " ".join(filter(None, parts)).replace("|", "\\|")


def _help(command: click.Command) -> str:
    """Return the help of a command as Markdown; paragraphs that are not to be wrapped become code blocks."""
    paragraphs = []
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        if text.startswith("\b\n"):
            block = text.removeprefix("\b\n")
            language = "sh" if block.startswith("tidelog ") else "text"
            paragraphs.append(f"```{language}\n{block}\n```")
        else:
            paragraphs.append(" ".join(text.split()))
    return "\n\n".join(paragraphs)
