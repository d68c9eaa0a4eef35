"""The progress display: a bar on a terminal, one line per epoch elsewhere."""

import time
from collections.abc import Callable, Mapping

from rich import progress
from rich.console import Console


class Display:
    """A progress bar and lines on stderr; nothing if ``quiet``."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, quiet=quiet)
        live = self.console.is_terminal and not quiet
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[terms]}"),
            console=self.console,
            disable=not live,
            transient=True,
        )
        self._task = None if not live else self._bar.add_task("", visible=False, terms="")
        self._last = self._read = 0.0

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)

    def start(self, what: str, total: int) -> None:
        """Start a new bar of ``total`` steps."""
        if self._task is not None:
            self._read = 0.0
            self._bar.reset(self._task, total=total, description=what, visible=True, terms="")

    def step(
        self,
        done: int,
        total: int | None = None,
        terms: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Move the bar to ``done`` of ``total`` steps, at most ten times a second.

        ``terms()`` is called and shown at most once a second.
        """
        now = time.monotonic()
        if self._task is None or (now - self._last < 0.1 and done != total):
            return
        self._last = now
        self._bar.update(self._task, completed=done, total=total)
        if terms is not None and now - self._read >= 1:
            self._read = now
            shown = " ".join(f"{k} {v:.3g}" for k, v in terms().items())
            self._bar.update(self._task, terms=shown)

    def stop(self) -> None:
        """Hide the bar."""
        if self._task is not None:
            self._bar.update(self._task, visible=False)
