"""The hint that every error about a missing package ends with: how to install the extra that has it."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of Tidelog beside what is installed, such as
    ``pip install 'tidelog[plots]'``. ``extra`` is a name in ``[project.optional-dependencies]`` of
    ``pyproject.toml``, or several with commas between them."""
    return f"pip install 'tidelog[{extra}]'"
