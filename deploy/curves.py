"""What a training run leaves behind: a folder with metrics, line by line, and the learning curve as a picture."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from deploy.errors import DeployError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ModuleNotFoundError as missing:
    raise DeployError(
        "matplotlib must be installed to draw learning curves; try: pip install 'replay-service[demo]'"
    ) from missing

__all__ = ["LearningCurve", "RunFolder"]

DOTS_PER_INCH = 120


@dataclass
class LearningCurve:
    """Mean returns against environment steps: of collecting (with exploration) and of the greedy policy.

    threshold: the mean return that counts as solved.
    """

    title: str
    threshold: float
    collected: list[tuple[int, float]] = field(default_factory=list)
    greedy: list[tuple[int, float]] = field(default_factory=list)

    def draw(self, path: Path) -> None:
        """Write the curve as a PNG."""
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if self.collected:
            axes.plot(*zip(*self.collected, strict=True), color="tab:blue", label="collecting, last 50 episodes")
        if self.greedy:
            axes.plot(*zip(*self.greedy, strict=True), "o", color="tab:orange", label="greedy, 20 episodes")
        axes.axhline(self.threshold, color="tab:green", linestyle="--", label=f"solved: {self.threshold:g}")
        axes.set_title(self.title)
        axes.set_xlabel("environment steps")
        axes.set_ylabel("mean return")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=DOTS_PER_INCH)


class RunFolder:
    """A new folder `<runs>/<time stamp>/` with `metrics.jsonl`, which is written through at every record."""

    def __init__(self, runs: Path) -> None:
        self.path = _new_folder(runs)
        self._metrics = (self.path / "metrics.jsonl").open("w", encoding="utf-8")

    def record(self, kind: str, **values: Any) -> None:
        """Append one JSON object with `kind` and `values` (numbers, texts, None)."""
        self._metrics.write(json.dumps({"kind": kind, **values}) + "\n")
        self._metrics.flush()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._metrics.close()


def _new_folder(runs: Path) -> Path:
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    attempt = 1
    while True:
        path = runs / (stamp if attempt == 1 else f"{stamp}_{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not runs.is_dir():
                raise
            attempt += 1
        else:
            return path
