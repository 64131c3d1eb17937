"""What a tutorial tells its reader to save, and to run."""

from __future__ import annotations

import re

from pages.place import ROOT, Place, blocks, commands_of


class Tutorial:
    """A page of ``docs/``: its commands, and the files that the reader saves."""

    def __init__(self, path: str) -> None:
        self.text = (ROOT / "docs" / path).read_text()
        self.commands = [command for block in blocks(self.text, "sh") for command in commands_of(block)]
        found = re.findall(r"^Save this [^`]*`(\S+)`:\n\n```\w+\n(.*?)^```$", self.text, re.M | re.S)
        self.files: dict[str, str] = dict(found)
        """The text of each file, by name."""

    def command(self, start: str) -> str:
        """Return the one command that begins like this. The page may show it several times."""
        (found,) = {command for command in self.commands if command.startswith(start)}
        return found

    def save_files(self, place: Place) -> None:
        """Save the files of the page in a place, with the place's ports and folder."""
        for name, text in self.files.items():
            (place.folder / name).write_text(place.own(text))
