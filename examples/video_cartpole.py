"""CartPole from pixels: episodes lie in video files, a hosted buffer holds references, and frames are decoded where you say.

    python -m examples.video_cartpole [--decode service|client] [--episodes 12] [--updates 150] [--folder DIR] [--strip strip.png]

A collector renders episodes, writes each to a file, and extends the buffer through a handle when that file is whole. A learner draws
slices of 8 steps through another handle, gets stacks of three frames, and learns to tell from them where the cart and the pole are and how
fast they move. With `--decode service` the actor decodes and sends frames; with `--decode client` it sends 16 bytes a frame, and the
learner's own threads decode ahead. Needs `pip install "replay-service[video]" "gymnasium[classic-control]"`, and FFmpeg.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from clients import ReplayClient, VideoWriter
from replay_service import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from replay_service.transforms import CatFrames, Compose, DecodeVideoTransform

__all__ = ["Gaze", "collect", "hosted", "learn", "main", "save_strip"]

SLICE, FRAMES, BATCH = 8, 3, 32


def main(arguments: list[str] | None = None) -> list[float]:
    """Runs the example; the loss of every update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", choices=["service", "client"], default="client")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--steps", type=int, default=100, help="steps of an episode at most")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--folder", help="where the video files go; a temporary one if left out")
    parser.add_argument("--strip", help="save one slice of decoded frames as a PNG")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, hosted(options.decode) as owner:
        steps = collect(owner.client(), options.folder or scratch, options.episodes, options.steps)
        size = sum(path.stat().st_size for path in Path(options.folder or scratch).glob("*.mp4"))
        print(f"{steps} steps, {size / steps + 16:.0f} bytes each; dense frames take {200 * 300 * 3}")
        learner = owner.client()
        losses = learn(learner, options.updates)
        tenth = max(1, len(losses) // 10)
        first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
        print(f"decoded by the {options.decode}: loss {first:.3f} at first, {last:.3f} in the end")
        if options.strip:
            save_strip(learner.sample(SLICE)["pixels"][:, -3:], options.strip)
    return losses


def hosted(decode: Any, **settings: Any) -> Any:
    """The owner of a buffer whose samples are slices of steps with stacks of frames."""
    return TensorDictReplayBuffer(
        service_backend="ray",
        storage=partial(LazyTensorStorage, 100_000),
        sampler=partial(SliceSampler, slice_len=SLICE),
        batch_size=BATCH,
        transform=Compose(
            DecodeVideoTransform(in_keys=["frame"], out_keys=["pixels"], decode=decode),
            CatFrames(N=FRAMES, dim=-3, in_keys=["pixels"]),
        ),
        **settings,
    )


def collect(client: ReplayClient, folder: str | Path, episodes: int, steps: int = 100) -> int:
    """Renders episodes, at half the size, in which every other push is one of chance. Returns the number of steps."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=steps)
    env.action_space.seed(0)
    taken = 0
    with VideoWriter(client, folder) as writer:
        for episode in range(episodes):
            state, _ = env.reset(seed=episode)
            done = False
            while not done:
                frame, seen = env.render()[::2, ::2], torch.from_numpy(state)
                by_chance = taken % 2
                action = int(env.action_space.sample()) if by_chance else int(state[2] + state[3] > 0)
                state, reward, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
                writer.append(frame, {"state": seen, "next": {"reward": [float(reward)], "done": [done]}})
                taken += 1
            writer.end_episode()
    env.close()
    return taken


class Gaze(nn.Module):
    """Tells the state `[B, 4]` of CartPole from stacks of frames uint8 `[B, 9, 200, 300]`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3 * FRAMES, 16, 5, 3),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(64),
            nn.ReLU(),
            nn.Linear(64, 4),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """The estimated state, in units of its spread."""
        told: Tensor = self.layers(1 - pixels[..., ::2, ::2].float() / 255)
        return told


def learn(client: ReplayClient, updates: int) -> list[float]:
    """Fits a `Gaze` to slices; the loss of every update."""
    torch.manual_seed(0)
    gaze = Gaze()
    spread = torch.tensor([0.1, 0.4, 0.08, 0.6])
    optimizer: torch.optim.Optimizer | None = None
    losses = []
    with client.prefetch(depth=2) as batches:
        for batch in itertools.islice(batches, updates):
            loss = nn.functional.smooth_l1_loss(gaze(batch["pixels"]), batch["state"] / spread)
            if optimizer is None:  # the last layer knows its size by now
                optimizer = torch.optim.Adam(gaze.parameters(), 1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def save_strip(frames: Tensor, path: str | Path) -> None:
    """Saves frames uint8 `[T, 3, H, W]` side by side, with grey lines between them, as a PNG."""
    from matplotlib.image import imsave

    apart = nn.functional.pad(frames, (0, 3), value=160)
    imsave(path, torch.cat(list(apart), 2).permute(1, 2, 0).contiguous().numpy())


if __name__ == "__main__":
    main()
