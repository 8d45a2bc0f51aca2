"""What do frames cost as video: bytes per step, and frames decoded per second?

    python -m benchmarks.video [--steps 200] [--seconds 2] [--json FILE]

Eight episodes of CartPole, rendered at 400×600, are written by a `VideoWriter`. First: bytes of files and references per step, beside
the pixels themselves and beside pixels that zstd has compressed one by one. Then: batches of 64 frames through `DecodeVideoTransform`, as
slices of 16 steps and as single random frames, with one decoder kept open and with eight. Random frames start at the last keyframe
before each, and with one decoder every batch opens each of its files anew.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from benchmarks.clock import in_turn, report
from clients import VideoEncoding, VideoWriter
from replay_service import (
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
    clear_video_decoder_cache,
    set_video_decoder_cache_size,
)
from replay_service.transforms import DecodeVideoTransform

__all__ = ["decoding", "main", "recorded", "sizes"]

EPISODES, BATCH, SLICE = 8, 64, 16
INTERVALS = (16, 64)
OPEN = (1, 8)


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    frames = rendered(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        buffers = {interval: recorded(Path(folder) / str(interval), frames, interval) for interval in INTERVALS}
        report("Bytes per step of rendered CartPole", sizes(Path(folder), frames), None)
        rows = [row for interval, buffer in buffers.items() for row in decoding(buffer, interval, options.seconds)]
        report(f"Decoded frames per second, batches of {BATCH}", rows, options.json)


def rendered(steps: int) -> list[list[np.ndarray]]:
    """Frames uint8 `[400, 600, 3]` of episodes in which a simple rule keeps the pole up."""
    import gymnasium

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=steps)
    episodes = []
    for seed in range(EPISODES):
        observation, _ = env.reset(seed=seed)
        frames, done = [], False
        while not done:
            frames.append(env.render())
            observation, _, terminated, truncated, _ = env.step(int(observation[2] + 0.3 * observation[3] > 0))
            done = terminated or truncated
        episodes.append(frames)
    env.close()
    return episodes


def recorded(folder: Path, episodes: list[list[np.ndarray]], interval: int) -> TensorDictReplayBuffer:
    """A buffer of references to the frames, one file per episode."""
    buffer: TensorDictReplayBuffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=BATCH)
    with VideoWriter(buffer, folder, encoding=VideoEncoding(keyframe_interval=interval)) as writer:
        for number, frames in enumerate(episodes):
            for step, frame in enumerate(frames):
                writer.append(frame, {"episode": number, "next": {"done": [step == len(frames) - 1]}})
            writer.end_episode()
    buffer.append_transform(DecodeVideoTransform("frame", "pixels"))
    return buffer


def sizes(folder: Path, episodes: list[list[np.ndarray]]) -> list[dict[str, Any]]:
    """Bytes per step of what was recorded."""
    frames = [frame for episode in episodes for frame in episode]
    dense = frames[0].nbytes
    kept = zstandard.ZstdCompressor(level=3)
    packed = sum(len(kept.compress(frame.tobytes())) for frame in frames[::10]) / len(frames[::10])
    rows = [("dense frames", float(dense)), ("dense frames, zstd", packed)]
    for interval in INTERVALS:
        size = sum(path.stat().st_size for path in (folder / str(interval)).iterdir())
        rows.append((f"video, a keyframe every {interval}", size / len(frames) + 16))
    return [{"stored as": name, "bytes per step": bytes_, "times smaller": dense / bytes_} for name, bytes_ in rows]


def decoding(buffer: TensorDictReplayBuffer, interval: int, seconds: float) -> list[dict[str, Any]]:
    """Frames per second for slices and for single random frames, for each number of open decoders."""
    rows = []
    samplers = {f"slices of {SLICE}": SliceSampler(slice_len=SLICE, traj_key="episode"), "random": RandomSampler()}
    for name, sampler in samplers.items():
        buffer.set_sampler(sampler)
        row: dict[str, Any] = {"keyframe every": interval, "frames": name}
        for size in OPEN:
            with _open_decoders(size):
                times = in_turn({name: buffer.sample}, seconds, rounds=1, warm=2)[name]
            row[f"{size} open"] = BATCH * times["per_s"]
        rows.append(row)
    return rows


@contextmanager
def _open_decoders(size: int) -> Iterator[None]:
    clear_video_decoder_cache()
    set_video_decoder_cache_size(size)
    try:
        yield
    finally:
        set_video_decoder_cache_size(32)
        clear_video_decoder_cache()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
