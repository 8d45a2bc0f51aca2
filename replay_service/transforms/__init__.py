"""What records go through on their way in and out of a buffer: written for ours, and any function works in their place."""

from __future__ import annotations

from replay_service.transforms.burn_in import BurnIn
from replay_service.transforms.compose import Compose
from replay_service.transforms.decode_video import DecodeVideoTransform
from replay_service.transforms.dtype import DtypeCast
from replay_service.transforms.frames import CatFrames
from replay_service.transforms.multi_step import MultiStep
from replay_service.transforms.norm import ObservationNorm
from replay_service.transforms.rename import RenameKeys
from replay_service.transforms.scaling import RewardScaling
from replay_service.transforms.select import SelectKeys
from replay_service.transforms.transform import Transform

__all__ = [
    "BurnIn",
    "CatFrames",
    "Compose",
    "DecodeVideoTransform",
    "DtypeCast",
    "MultiStep",
    "ObservationNorm",
    "RenameKeys",
    "RewardScaling",
    "SelectKeys",
    "Transform",
]
