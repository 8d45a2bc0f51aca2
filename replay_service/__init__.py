"""Replay memory for distributed reinforcement learning: one buffer, many machines, the same calls."""

from __future__ import annotations

import importlib
from typing import Any

from replay_service.buffer.ensemble.replay_buffer_ensemble import ReplayBufferEnsemble
from replay_service.buffer.her import HERReplayBuffer, HindsightStrategy
from replay_service.buffer.offline import OfflineToOnlineReplayBuffer
from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.buffer.offline_files.opening import open_offline_file
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.compressed import CompressedListStorageCheckpointer
from replay_service.buffer.persist.checkpointers.ensemble import StorageEnsembleCheckpointer
from replay_service.buffer.persist.checkpointers.flat import FlatStorageCheckpointer
from replay_service.buffer.persist.checkpointers.h5 import H5StorageCheckpointer
from replay_service.buffer.persist.checkpointers.list import ListStorageCheckpointer
from replay_service.buffer.persist.checkpointers.nested import NestedStorageCheckpointer
from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.persist.nested_ted import H5Combine, H5Split, Nested2TED, TED2Nested
from replay_service.buffer.persist.ted import DEFAULT_DONE_KEYS, Flat2TED, TED2Flat
from replay_service.buffer.prefill import prefill_replay_buffer
from replay_service.buffer.prioritized_buffer import PrioritizedReplayBuffer
from replay_service.buffer.query import TrajectoryPredicate, traj
from replay_service.buffer.remote_buffer import RemoteTensorDictReplayBuffer
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.consuming import ConsumingSampler
from replay_service.buffer.samplers.ensemble import SamplerEnsemble
from replay_service.buffer.samplers.llm import PromptGroupSampler
from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.samplers.prioritized_slice import PrioritizedSliceSampler
from replay_service.buffer.samplers.random import RandomSampler
from replay_service.buffer.samplers.slice import SliceSampler
from replay_service.buffer.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replay_service.buffer.samplers.staleness import StalenessAwareSampler
from replay_service.buffer.samplers.streaming_slice import StreamingSliceSampler
from replay_service.buffer.samplers.without_replacement import SamplerWithoutReplacement
from replay_service.buffer.schedules import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    SchedulerList,
    StepScheduler,
)
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.compressed_list import CompressedListStorage
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.buffer.storages.lazy_memmap import LazyMemmapStorage
from replay_service.buffer.storages.lazy_stack import LazyStackStorage
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.storages.tensor import TensorStorage
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.buffer.tensordict_prioritized_buffer import TensorDictPrioritizedReplayBuffer
from replay_service.buffer.trajectories import Trajectory, filter_trajectories, iter_trajectories
from replay_service.buffer.units import SampleUnit, Sequence, Transition
from replay_service.buffer.video.clip import VideoClipRef
from replay_service.buffer.video.decoders import clear_video_decoder_cache, set_video_decoder_cache_size
from replay_service.buffer.writers.base import Writer
from replay_service.buffer.writers.ensemble import WriterEnsemble
from replay_service.buffer.writers.immutable import ImmutableDatasetWriter
from replay_service.buffer.writers.max_value import TensorDictMaxValueWriter
from replay_service.buffer.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter
from replay_service.errors import (
    CheckpointError,
    ClosedError,
    EmptyBufferError,
    LayoutError,
    PriorityError,
    ReplayError,
    ReplayTimeoutError,
    ServiceUnavailableError,
    TransportUnavailableError,
)
from replay_service.records import ConditionalUpdateResult, SaveReceipt, UpdateResult

__all__ = [
    "DEFAULT_DONE_KEYS",
    "CheckpointError",
    "ClosedError",
    "CompressedListStorage",
    "CompressedListStorageCheckpointer",
    "ConditionalUpdateResult",
    "ConsumingSampler",
    "EmptyBufferError",
    "Flat2TED",
    "FlatStorageCheckpointer",
    "H5Combine",
    "H5Split",
    "H5StorageCheckpointer",
    "HERReplayBuffer",
    "HindsightStrategy",
    "ImmutableDatasetWriter",
    "LambdaScheduler",
    "LayoutError",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "LinearScheduler",
    "ListStorage",
    "ListStorageCheckpointer",
    "Nested2TED",
    "NestedStorageCheckpointer",
    "OfflineFile",
    "OfflineToOnlineReplayBuffer",
    "ParameterScheduler",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "PriorityError",
    "PromptGroupSampler",
    "RandomSampler",
    "RayReplayBuffer",
    "RemoteTensorDictReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "ReplayError",
    "ReplayTimeoutError",
    "RoundRobinWriter",
    "SampleUnit",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SaveReceipt",
    "SchedulerList",
    "Sequence",
    "ServiceUnavailableError",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "StepScheduler",
    "Storage",
    "StorageCheckpointerBase",
    "StorageEnsemble",
    "StorageEnsembleCheckpointer",
    "StreamingSliceSampler",
    "TED2Flat",
    "TED2Nested",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TensorStorageCheckpointer",
    "Trajectory",
    "TrajectoryPredicate",
    "Transition",
    "TransportUnavailableError",
    "UpdateResult",
    "VideoClipRef",
    "Writer",
    "WriterEnsemble",
    "clear_video_decoder_cache",
    "filter_trajectories",
    "iter_trajectories",
    "open_offline_file",
    "prefill_replay_buffer",
    "set_video_decoder_cache_size",
    "traj",
]

HOSTED = {"RayReplayBuffer": "replay_service.service.owner"}
"""Names that need Ray, imported when they are first asked for: a local buffer works without it."""


def __getattr__(name: str) -> Any:
    if name in HOSTED:
        return getattr(importlib.import_module(HOSTED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
