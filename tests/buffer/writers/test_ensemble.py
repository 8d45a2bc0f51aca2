"""WriterEnsemble: the writers of several storages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from replay_service import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    RoundRobinWriter,
    StorageEnsemble,
    TensorDictMaxValueWriter,
    WriterEnsemble,
)
from tests.rows import stamped_rows


def _writers(track: bool = True) -> tuple[StorageEnsemble, WriterEnsemble]:
    storage = StorageEnsemble(LazyTensorStorage(4), LazyTensorStorage(4))
    writer = WriterEnsemble(RoundRobinWriter(track_generations=True), RoundRobinWriter(track_generations=track))
    writer.register_storage(storage)
    return storage, writer


def test_each_writes_to_its_own_storage() -> None:
    storage, writer = _writers()
    writer[0].extend(stamped_rows(2))
    writer[1].extend(stamped_rows(5))
    assert ([len(part) for part in storage.storages], writer.write_count, len(writer)) == ([2, 4], 7, 2)
    index = {"buffer_ids": torch.tensor([[0, 1, 1]]), "index": torch.tensor([[1, 0, 1]])}
    assert writer.generations_of(index).tolist() == [[0, 1, 0]]
    assert (writer.tracks_generations, _writers(track=False)[1].tracks_generations) == (True, False)
    writer.empty()
    assert (writer.write_count, writer[1].cursor) == (0, 0)  # type: ignore[attr-defined]


def test_a_writer_that_writes_already_goes_on_where_it_stands() -> None:
    storage, writer = _writers()
    writer[0].extend(stamped_rows(6))
    WriterEnsemble(*writer.writers).register_storage(storage)
    assert writer[0].extend(stamped_rows(1)).tolist() == [2]


def test_it_writes_nothing_itself() -> None:
    _, writer = _writers()
    for call in (writer.extend, writer.add):
        with pytest.raises(RuntimeError, match="given to one writer"):
            call(stamped_rows(1))


def test_one_that_must_not_be_written_to_is_enough() -> None:
    with pytest.raises(RuntimeError, match="fixed"):
        WriterEnsemble(RoundRobinWriter(), ImmutableDatasetWriter()).require_writable()


def test_states_come_back(tmp_path: Path) -> None:
    _, writer = _writers()
    writer[1].extend(stamped_rows(6))
    writer.dumps(tmp_path / "writers")
    for carry in (
        lambda other: other.load_state_dict(writer.state_dict()),
        lambda other: other.loads(tmp_path / "writers"),
    ):
        _, other = _writers()
        carry(other)
        assert (other.write_count, other[1].cursor) == (6, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: WriterEnsemble(), ValueError, "at least one"),
        (lambda: WriterEnsemble(3), TypeError, r"writers\[0\]"),  # type: ignore[arg-type]
        (lambda: _writers()[1].register_storage(LazyTensorStorage(2)), TypeError, "StorageEnsemble"),
        (
            lambda: _writers()[1].register_storage(StorageEnsemble(LazyTensorStorage(2))),
            ValueError,
            r"writers \(2\) must be one per storage; got 1",
        ),
        (
            lambda: WriterEnsemble(TensorDictMaxValueWriter()).register_storage(
                StorageEnsemble(LazyTensorStorage(4, ndim=2))
            ),
            ValueError,
            "one dimension",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
