"""Steps in slot order and the trajectories they make up: what predicates are asked of, and where matches are taken from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service.buffer.markers import segments_of
from replay_service.buffer.segments import Segments
from replay_service.buffer.trajectory import Trajectory, as_steps, entry_key, known_entries
from replay_service.errors import key_name
from replay_service.specs import Key

__all__ = ["Steps"]

NUMPY_LACKS = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class Steps:
    """Views of steps, cut into trajectories; valid as long as nobody writes to them.

    Args:
        data: TensorDict `[T, *lanes]`, the filled slots in their order.
        segments: its trajectories.
    """

    def __init__(self, data: TensorDictBase, segments: Segments) -> None:
        self.data = data
        self.segments = segments
        self._values: dict[Key, NDArray[Any]] = {}

    @classmethod
    def of_batch(cls, data: Any, trajectory_key: Any = None) -> Steps | None:
        """Steps `[T]` as they were written, one trajectory after the other; None if there are none.

        Raises:
            ValueError: another number of batch dimensions.
        """
        steps = as_steps(data)
        if len(steps.batch_size) != 1:
            raise ValueError(
                f"data ({list(steps.batch_size)}) must have one batch dimension, time; reshape(-1) it, or cut it by lanes"
            )
        return cls(steps, segments_of(steps, trajectory_key)) if steps.batch_size[0] else None

    @classmethod
    def of_one(cls, trajectory: Any) -> Steps:
        """One trajectory `[T]`, whatever its markers say.

        Raises:
            ValueError: no steps, or another number of batch dimensions.
        """
        steps = as_steps(trajectory)
        if len(steps.batch_size) != 1 or not steps.batch_size[0]:
            raise ValueError(
                f"trajectory ({list(steps.batch_size)}) must have one batch dimension with at least one step"
            )
        zero = np.zeros(1, np.int64)
        length = steps.batch_size[0]
        return cls(steps, Segments(zero, zero, zero + length, length, 1))

    def values(self, key: Key) -> NDArray[Any]:
        """The entry `key` as numbers `[rows, k]` by row number (see `segments`): all values of a step flat.

        Raises:
            KeyError: there is no such entry, neither at the root nor under `next`; what exists is listed.
            TypeError: it holds no real numbers.
        """
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = self._numbers(key)
        return found

    def _numbers(self, key: Key) -> NDArray[Any]:
        place = entry_key(self.data, key)
        if place is None:
            raise KeyError(f"entry ({key_name(key)}) must be one of {known_entries(self.data)}")
        column = self.data.get(place)
        if isinstance(column, TensorDictBase):
            raise KeyError(
                f"entry ({key_name(place)}) holds other entries; it must be one of {known_entries(self.data)}"
            )
        if not isinstance(column, Tensor) or column.is_complex():
            raise TypeError(f"{key_name(place)} must be a tensor of real numbers to be compared; got {_kind(column)}")
        batch = self.data.batch_size
        rows, lanes = batch[0], int(np.prod(batch[1:], dtype=np.int64))
        numbers = column.detach().cpu()
        array = (numbers.float() if numbers.dtype in NUMPY_LACKS else numbers).numpy().reshape(rows, lanes, -1)
        if array.shape[2] == 0:
            raise ValueError(
                f"{key_name(place)} must hold numbers to be compared; got steps of shape {list(column.shape[len(batch) :])}"
            )
        return array.transpose(1, 0, 2).reshape(rows * lanes, -1)

    def trajectory(self, place: int, data: TensorDictBase | None = None) -> Trajectory:
        """One trajectory: a view where its steps are neighbours, else a copy; of `data` instead, if given."""
        source = self.data if data is None else data
        run = self.segments.run(place)
        return Trajectory(source[run] if run is not None else _picked(source, self.segments.records(np.array([place]))))

    def selected(self, keys: frozenset[Key]) -> TensorDictBase:
        """The steps with only the entries that `keys` name.

        Raises:
            KeyError: there is no such entry.
        """
        places: list[Key] = []
        for key in keys:
            place = entry_key(self.data, key)
            if place is None:
                raise KeyError(f"keys ({key_name(key)}) must be among {known_entries(self.data)}")
            places.append(place)
        return self.data.select(*places) if places else TensorDict(batch_size=self.data.batch_size)

    def copies(self, chosen: NDArray[np.int64]) -> TensorDictBase:
        """The steps `[total]` of the trajectories `chosen`, one after the other, as copies."""
        return _picked(self.data, self.segments.records(chosen))


def _picked(data: TensorDictBase, records: NDArray[np.int64]) -> TensorDictBase:
    index = torch.from_numpy(records)
    picked: TensorDictBase = data.reshape(-1)[index.to(data.device) if data.device is not None else index]
    return picked


def _kind(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
