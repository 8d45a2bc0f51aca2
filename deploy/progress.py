"""How a training run shows itself: a progress bar on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Reading", "Screen"]

PLAIN_EVERY_S = 10.0


@dataclass(frozen=True)
class Reading:
    """The state of a run at one moment. Rates are of the time since the reading before.

    mean_return: of the last collected episodes, None before the first one. best_return: best greedy mean so far.
    """

    elapsed_s: float
    env_steps: int
    updates: int
    episodes: int
    mean_return: float | None
    best_return: float | None
    env_steps_per_s: float
    updates_per_s: float
    buffer_fill: float
    epsilon: float
    loss: float | None

    def line(self) -> str:
        """All that fits into one line."""
        mean, best = _number(self.mean_return), _number(self.best_return)
        return (
            f"return {mean} (greedy best {best}) · {self.env_steps_per_s:,.0f} env steps/s · "
            f"{self.updates_per_s:,.0f} gradient steps/s · buffer {self.buffer_fill:.0%}"
        )


class Screen:
    """Shows readings until it is left. `limit_s`: where the bar ends."""

    def __init__(self, console: Console, limit_s: float) -> None:
        self._console = console
        self._limit_s = limit_s
        self._last_line_s = 0.0
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TimeElapsedColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=limit_s)

    def say(self, text: str) -> None:
        """One line of its own."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, reading: Reading) -> None:
        """The newest reading."""
        if self._bar is not None:
            self._bar.update(self._task, completed=min(reading.elapsed_s, self._limit_s), description=reading.line())
        elif time.monotonic() - self._last_line_s >= PLAIN_EVERY_S:
            self._last_line_s = time.monotonic()
            self.say(f"{reading.elapsed_s:5.0f} s · {reading.env_steps:,} env steps · {reading.line()}")

    def __enter__(self) -> Screen:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
