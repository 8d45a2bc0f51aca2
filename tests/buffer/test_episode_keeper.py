"""EpisodeKeeper: an index that is as if it had been made anew, whatever it was told and not told."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.episode_keeper import EpisodeKeeper
from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import EpisodeIndex
from replay_service.buffer.samplers.slice import SliceSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import LayoutError
from tests.buffer.episode_rows import buffer_of, episode_rows


def _listed(index: EpisodeIndex) -> list[list[int]]:
    return np.stack(index.trajectories()).T.tolist()


class Watching(SliceSampler):
    """A slice sampler whose keeper can be asked."""

    @property
    def keeper(self) -> EpisodeKeeper:
        return self._keeper


@settings(max_examples=60, deadline=None)
@given(data=st.data(), by_ids=st.booleans(), storage=st.sampled_from([LazyTensorStorage, ListStorage]))
def test_followed_and_made_anew_are_alike(data: Any, by_ids: bool, storage: Any) -> None:
    marks = {"traj_key": "number"} if by_ids else {"end_key": ("next", "done")}
    sampler = Watching(slice_len=1, **marks)
    buffer = buffer_of(sampler, storage=storage(12))
    followed = {}
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        act = data.draw(st.sampled_from(["extend", "extend", "mark", "empty", "look"]))
        if act == "extend":
            lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
            buffer.extend(episode_rows(lengths, first=number, closed=data.draw(st.booleans())))
            number += len(lengths)
        elif act == "empty":
            buffer.empty()
        elif len(buffer) and act == "mark" and storage is LazyTensorStorage:
            slot = torch.tensor([data.draw(st.integers(0, len(buffer) - 1))])
            if by_ids:
                buffer.set_at_("number", torch.tensor([number]), slot)
                number += 1
            else:
                buffer.set_at_(("next", "done"), torch.tensor([[data.draw(st.booleans())]]), slot)
        if not len(buffer):
            continue
        keeper = sampler.keeper
        index = keeper.index_of(buffer.storage)
        # Positions name steps for good, as long as the numbering is the same.
        slots = np.arange(len(buffer))
        positions = keeper.positions_at(slots, np.zeros_like(slots))
        assert sorted(positions.tolist()) == list(range(keeper.oldest, keeper.end))
        assert np.array_equal(keeper.slots_at(positions, np.zeros_like(slots)), slots)
        steps = {int(p): (int(row["number"]), int(row["step"])) for p, row in zip(positions, buffer[:], strict=True)}
        if not by_ids:  # marking changes the number
            lineage = keeper.lineage
            known = followed.get(lineage, {})
            assert all(known[p] == steps[p] for p in steps if p in known)
            followed[lineage] = {**known, **steps}
        fresh = Watching(slice_len=1, **marks)
        previous = buffer.set_sampler(fresh)
        assert _listed(fresh.keeper.index_of(buffer.storage)) == _listed(index)
        assert fresh.keeper.index_of(buffer.storage).cursor == index.cursor
        buffer.set_sampler(previous)  # told of all records again
        assert _listed(keeper.index_of(buffer.storage)) == _listed(fresh.keeper.index_of(buffer.storage))


def test_copies_make_their_index_anew() -> None:
    sampler = Watching(slice_len=2)
    buffer = buffer_of(sampler, capacity=10)
    buffer.extend(episode_rows([5, 4, 6]))
    listed = _listed(sampler.keeper.index_of(buffer.storage))
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert _listed(other.sampler.keeper.index_of(other.storage)) == listed
        other.extend(episode_rows([2], first=9))
        assert _listed(other.sampler.keeper.index_of(other.storage)) != listed


def test_slots_in_another_order_are_read_anew() -> None:
    buffer = buffer_of(None, episode_rows([4, 4]), capacity=8)
    keeper = EpisodeKeeper(EpisodeMarks())
    keeper.written(torch.arange(8))
    assert len(_listed(keeper.index_of(buffer.storage))) == 2
    lineage = keeper.lineage
    buffer.storage.column(("next", "done"))[5] = True
    keeper.written(torch.tensor([5, 2]))
    assert keeper.lineage != lineage
    assert _listed(keeper.index_of(buffer.storage)) == [[3, 3, 1, 0], [4, 5, 2, 0], [6, 7, 2, 0], [0, 2, 3, 0]]


def test_records_that_nobody_told_of_are_found_by_their_number() -> None:
    buffer = buffer_of(None, episode_rows([3]), capacity=8)
    keeper = EpisodeKeeper(EpisodeMarks())
    assert len(_listed(keeper.index_of(buffer.storage))) == 1
    buffer.extend(episode_rows([2]))
    assert len(_listed(keeper.index_of(buffer.storage))) == 2


def test_a_record_without_marks_is_found_out_by_draws_not_by_writes() -> None:
    buffer = buffer_of(SliceSampler(slice_len=1), episode_rows([3]), storage=ListStorage(8))
    buffer.sample(1)
    buffer.extend([{"x": 1}])
    with pytest.raises(LayoutError, match=r"next.done must be in every record"):
        buffer.sample(1)


def test_several_numbers_are_no_id() -> None:
    rows = episode_rows([3])
    rows["traj"] = torch.zeros(3, 2)
    with pytest.raises(LayoutError, match=r"traj must be one number per record; got \[3, 2\]"):
        buffer_of(SliceSampler(slice_len=1, traj_key="traj"), rows).sample(1)


def test_marks_of_another_number_of_steps_are_refused() -> None:
    sampler = SliceSampler(slice_len=1, ends=torch.zeros(5))
    with pytest.raises(ValueError, match=r"ends \[5\] must be one per stored step; got 3 x 1 steps"):
        buffer_of(sampler, episode_rows([3])).sample(1)
