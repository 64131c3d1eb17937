"""Progress bars on stderr. They are shown on a terminal only; elsewhere ``rich`` is not imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.cli.output import console
from tidelog.printable import escaped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """One progress bar: a text, the share of ``total`` that is done, and a note after it. ``text`` and ``note`` are
    converted to text (``str``) each time the bar is drawn, so they may be objects that change. ``total`` None: it is
    not known how much there is to do."""

    def __init__(self, text: object, total: float | None = None, note: object = "") -> None:
        self.text, self.total, self.note, self.done = text, total, note, 0.0
        self._shown: tuple[Progress, TaskID] | None = None

    @property
    def shown_text(self) -> str:
        """Return the text as it is now, with control characters escaped."""
        return escaped(str(self.text))

    @property
    def shown_note(self) -> str:
        """Return the note as it is now, with control characters escaped."""
        return escaped(str(self.note))

    def show(self, progress: Progress) -> None:
        """Show this bar as a line of a display of ``rich``."""
        self._shown = progress, progress.add_task("", total=self.total, bar=self)

    def update(self, *, done: float | None = None, total: float | None = None) -> None:
        """Set how much is done, and how much there is to do; None leaves it as it is."""
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self.done, total=self.total)

    def advance(self, done: float = 1) -> None:
        """Add to what is done."""
        self.update(done=self.done + done)


@contextmanager
def shown(*bars: Bar) -> Iterator[None]:
    """Return a context manager that shows the bars on stderr while its block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[bar].shown_text}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[bar].shown_note}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(err=True), transient=True) as progress:
        for bar in bars:
            bar.show(progress)
        yield
