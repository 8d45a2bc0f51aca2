"""The state of a training run in one file: the policy with its optimizers and generators, and how far training got."""

from __future__ import annotations

import copy
import io
import os
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["Standing", "load_checkpoint", "save_checkpoint"]

FORMAT = "replay-service training run 1"
ENTRIES = {"standing", "policy", "parts", "generators"}


@dataclass
class Standing:
    """How far training got. best_epoch: of the best test so far, -1 before the first one."""

    epoch: int = 0
    env_step: int = 0
    gradient_step: int = 0
    best_epoch: int = -1
    best_reward: float = 0.0
    best_reward_std: float = 0.0


def save_checkpoint(path: Path, policy: nn.Module, standing: Standing) -> None:
    """Write it all to `path`, which has either the old or the new content at any moment.

    Of the policy: its `state_dict`, and those of the optimizers and schedulers and the states of the generators that are
    attributes of it. Raises OSError where the file can't be written; then nothing changes.
    """
    state = {"format": FORMAT, "standing": asdict(standing), **_state(policy)}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def load_checkpoint(path: Path, policy: nn.Module) -> Standing:
    """Give `policy` its state back; how far training got.

    Raises FileNotFoundError, ValueError for a file that isn't such a checkpoint or belongs to another kind of policy; the policy
    is then what it was. Nothing in the file is run.
    """
    content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # torch does not look at the checksums that it writes
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} has another checksum")
        state: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # what is left of a damaged archive or pickle fails in many ways
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"checkpoint ({path}) must be a file that a trainer wrote; got a damaged one: {reason}"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT or not state.keys() >= ENTRIES:
        raise ValueError(f"checkpoint ({path}) must be a file that a trainer wrote; got another kind of file")
    parts, generators = _parts(policy), _generators(policy)
    if state["parts"].keys() != parts.keys() or state["generators"].keys() != generators.keys():
        raise ValueError(
            f"checkpoint ({path}) must be of this kind of policy; it has {sorted([*state['parts'], *state['generators']])}, "
            f"the policy has {sorted([*parts, *generators])}"
        )
    before = copy.deepcopy(_state(policy))  # modules load what fits before they refuse the rest
    try:
        standing = Standing(**state["standing"])
        _load(policy, state)
    except BaseException as error:
        _load(policy, before)
        if not isinstance(error, Exception):
            raise
        raise ValueError(f"checkpoint ({path}) must be of this kind of policy; {error}") from error
    return standing


def _state(policy: nn.Module) -> dict[str, Any]:
    return {
        "policy": policy.state_dict(),
        "parts": {name: part.state_dict() for name, part in _parts(policy).items()},
        "generators": {name: generator.get_state() for name, generator in _generators(policy).items()},
    }


def _load(policy: nn.Module, state: dict[str, Any]) -> None:
    policy.load_state_dict(state["policy"])
    for name, part in _parts(policy).items():
        part.load_state_dict(state["parts"][name])
    for name, generator in _generators(policy).items():
        generator.set_state(state["generators"][name])


def _parts(policy: nn.Module) -> dict[str, Any]:
    """Optimizers, schedulers and the like: what has a state but is no module."""
    return {
        name: value
        for name, value in vars(policy).items()
        if callable(getattr(value, "load_state_dict", None)) and not isinstance(value, nn.Module)
    }


def _generators(policy: nn.Module) -> dict[str, torch.Generator]:
    return {name: value for name, value in vars(policy).items() if isinstance(value, torch.Generator)}
