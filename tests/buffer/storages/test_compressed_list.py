"""CompressedListStorage: any record, smaller."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service import ReplayBuffer, TensorDictReplayBuffer
from replay_service.buffer.storages.compressed_list import CompressedListStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import LayoutError
from tests.contracts.storage import StorageContract, stamps_of
from tests.rows import assert_rows_are_whole, stamped_rows


def _compress(data: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(zlib.compress(data.numpy().tobytes())), np.uint8))


def _decompress(data: torch.Tensor) -> bytes:
    return zlib.decompress(data.numpy().tobytes())


class TestCompressedListStorage(StorageContract):
    def make(self, capacity: int) -> CompressedListStorage:
        return CompressedListStorage(capacity)


class TestOwnFunctions(StorageContract):
    def make(self, capacity: int) -> CompressedListStorage:
        return CompressedListStorage(capacity, compression_fn=_compress, decompression_fn=_decompress)


def test_records_shrink() -> None:
    buffer = TensorDictReplayBuffer(storage=CompressedListStorage(10), batch_size=4)
    frames = torch.zeros(10, 3, 84, 84, dtype=torch.uint8)
    frames[:, 0, 10:20] = torch.arange(10)[:, None, None]
    buffer.extend(TensorDict({"pixels": frames}, [10]))
    sample = buffer.sample()
    assert torch.equal(sample["pixels"], frames[sample["index"]])
    storage = buffer.storage
    assert isinstance(storage, CompressedListStorage)
    assert storage.size_bytes() < frames.nbytes / 20


def test_levels_trade_size_for_time() -> None:
    text = [torch.from_numpy(np.frombuffer(bytearray(str(list(range(5000))).encode()), np.uint8))]
    sizes = []
    for level in (1, 19):
        storage = CompressedListStorage(1, compression_level=level)
        storage.set(range(1), text)
        sizes.append(storage.size_bytes())
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("record", ["text", {"words": ["a"], "image": torch.ones(2)}, torch.ones(3), None])
def test_any_record(record: Any) -> None:
    storage = CompressedListStorage(1)
    storage.set(range(1), [record])
    assert str(storage.get(0)) == str(record)


def test_ragged_records() -> None:
    buffer = ReplayBuffer(storage=CompressedListStorage(3))
    buffer.extend([torch.ones(n) for n in (1, 2, 3)])
    assert [record.numel() for record in buffer[:]] == [1, 2, 3]


def test_a_record_that_cannot_be_packed_changes_nothing() -> None:
    storage = CompressedListStorage(4)
    storage.set(range(2), ["a", "b"])
    with pytest.raises(LayoutError, match="data"):
        storage.set(range(2), ["c", lambda: None])
    assert storage.get([0, 1]) == ["a", "b"]


@pytest.mark.parametrize("result", [torch.ones(3), "text"])
def test_functions_must_give_bytes(result: Any) -> None:
    storage = CompressedListStorage(4, compression_fn=lambda _: result, decompression_fn=lambda data: data)
    with pytest.raises(TypeError, match="uint8"):
        storage.set(range(1), [torch.ones(1)])
    assert len(storage) == 0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"compression_level": 0}, ValueError, "compression_level"),
        ({"compression_level": 99}, ValueError, "compression_level"),
        ({"compression_level": 1.5}, TypeError, "compression_level"),
        ({"compression_fn": _compress}, TypeError, "^decompression_fn"),
        ({"decompression_fn": _decompress}, TypeError, "^compression_fn"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        CompressedListStorage(2, **settings)


def test_device_is_where_records_are_read() -> None:
    storage = CompressedListStorage(1, device="meta")
    storage.set(range(1), [torch.ones(2)])
    assert storage.get(0).device.type == "meta"


def test_states_of_another_form_are_refused() -> None:
    plain, packed = ListStorage(2), CompressedListStorage(2)
    plain.set(range(1), ["a"])
    packed.set(range(1), ["b"])
    with pytest.raises(LayoutError, match="state_dict"):
        packed.load_state_dict(plain.state_dict())
    with pytest.raises(LayoutError, match="state_dict"):
        plain.load_state_dict(packed.state_dict())
    assert (plain.get(0), packed.get(0)) == ("a", "b")


def test_it_can_be_pickled() -> None:
    storage = CompressedListStorage(4)
    storage.set(range(3), stamped_rows(3))
    other = pickle.loads(pickle.dumps(storage))
    assert stamps_of(other.get(slice(None))) == [0, 1, 2]
    assert_rows_are_whole(torch.stack(other.get(slice(None))))
