from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from replay_service.buffer.episodes import EpisodeIndex
from replay_service.buffer.markers import segments_of


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_queries_and_the_index_of_samplers_see_the_same_trajectories(data: st.DataObject) -> None:
    lanes, capacity = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    by_ids, written = data.draw(st.booleans()), data.draw(st.integers(1, 20))
    seed = data.draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(0, 2, (written, lanes))
    index = EpisodeIndex(capacity, lanes)
    column = torch.zeros(capacity, lanes, dtype=torch.int64)
    for t, row in enumerate(values):
        index.write([t % capacity], **{"ids" if by_ids else "ends": row[None]})
        column[t % capacity] = torch.from_numpy(row)
    filled = min(written, capacity)
    column = column[:filled] if lanes > 1 else column[:filled, 0]
    entries = {"episode": column} if by_ids else {"next": {"terminated": column.unsqueeze(-1)}}
    steps = TensorDict(entries, batch_size=column.shape)
    segments = segments_of(steps, at_capacity=filled == capacity, cursor=written % capacity)
    chosen = segments.in_order(np.ones(len(segments), np.bool_))
    expected = index.trajectories()
    assert segments.length[chosen].tolist() == expected.length.tolist()
    ends = np.cumsum(expected.length)
    records = segments.records(chosen)
    assert records[ends - expected.length].tolist() == (expected.start * lanes + expected.lane).tolist()
    assert records[ends - 1].tolist() == (expected.stop * lanes + expected.lane).tolist()
    assert sorted(records.tolist()) == list(range(filled * lanes))
