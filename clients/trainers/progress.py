"""How an epoch shows itself: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["EpochBar"]


class EpochBar:
    """Counts the steps of epoch `epoch` up to `total` while entered; `shown` False only counts."""

    def __init__(self, epoch: int, total: int, *, shown: bool, console: Console | None = None) -> None:
        self.done = 0
        self.total = total
        self._bar: Progress | None = None
        console = console if console is not None else Console(stderr=True)
        if shown and console.is_terminal:
            columns = (
                TextColumn(f"Epoch #{epoch}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=total)

    @property
    def full(self) -> bool:
        """All steps are done."""
        return self.done >= self.total

    def advance(self, steps: int, **values: float) -> None:
        """`steps` more are done, and this is how it goes."""
        self.done += steps
        if self._bar is not None:
            text = ", ".join(f"{name}={value:.6g}" for name, value in values.items())
            self._bar.update(self._task, completed=min(self.done, self.total), description=text)

    def __enter__(self) -> EpochBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
