from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.curves import LearningCurve, RunFolder


def test_every_record_is_written_at_once(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "runs") as folder:
        for number in range(2):
            folder.record("progress", number=number, nothing=None)
            lines = (folder.path / "metrics.jsonl").read_text().splitlines()
            assert json.loads(lines[number]) == {"kind": "progress", "number": number, "nothing": None}


def test_two_runs_in_one_second_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.curves.time.strftime", lambda form: "now")
    paths = []
    for _ in range(3):
        with RunFolder(tmp_path) as folder:
            paths.append(folder.path.name)
    assert paths == ["now", "now_2", "now_3"]


def test_runs_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(OSError, match="runs"):
        RunFolder(tmp_path / "runs")


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(0, 1.0), (10, 3.0)]])
def test_a_curve_is_drawn_from_any_number_of_points(tmp_path: Path, points: list[tuple[int, float]]) -> None:
    path = tmp_path / "curve.png"
    LearningCurve("title", 2.0, collected=points, greedy=points[:1]).draw(path)
    assert path.read_bytes().startswith(b"\x89PNG")
