"""Real input: episodes of a rendered environment go through files and a hosted buffer to a learner, decoded on either side."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clients import VideoWriter
from clients.video_file import as_frame
from examples.video_cartpole import SLICE, collect, hosted, learn, save_strip
from tests.conftest import RaySession
from tests.video_files import needs_video

needs_rendering = pytest.mark.skipif(
    importlib.util.find_spec("pygame") is None,
    reason="pygame is not installed (pip install 'gymnasium[classic-control]')",
)


@needs_video
@needs_rendering
@pytest.mark.parametrize("place", ["service", "client"])
def test_a_learner_sees_what_was_rendered(
    ray_session: RaySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    rendered = []
    append = VideoWriter.append

    def noted(writer: VideoWriter, frame: Any, step: Any) -> None:
        rendered.append(as_frame(frame).clone())
        append(writer, frame, step)

    monkeypatch.setattr(VideoWriter, "append", noted)
    options = {"namespace": ray_session.namespace, "remote_config": {"num_cpus": 0}}
    with hosted(place, service_backend_options=options) as owner:
        client = owner.client()
        steps = collect(client, tmp_path / "episodes", 3, 20)
        assert len(client) == steps == len(rendered)
        losses = learn(owner.client(), 3)
        assert all(map(math.isfinite, losses))
        batch = client.sample(4 * SLICE)
        dense = torch.stack(rendered)
        difference = (batch["pixels"][:, -3:].int() - dense[batch["index"]].int()).abs().float()
        assert difference.mean() < 2
        moved = (dense[(batch["index"] + 9) % steps].int() - dense[batch["index"]].int()).abs().float()
        assert difference.mean() < moved.mean()
        save_strip(batch["pixels"][:SLICE, -3:], tmp_path / "strip.png")
    assert (tmp_path / "strip.png").read_bytes()[:4] == b"\x89PNG"
    size = sum(path.stat().st_size for path in (tmp_path / "episodes").iterdir())
    assert 50 * (size + 16 * steps) < dense.nbytes
