"""What holds for every batch, whatever is in it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.episodic.batch import Batch

NAMES = st.sampled_from(["a", "b", "c", "items"])


def leaves(rows: int) -> st.SearchStrategy[Any]:
    numbers = st.lists(st.integers(-9, 9), min_size=rows * 2, max_size=rows * 2)
    return st.one_of(
        numbers.map(lambda values: np.array(values).reshape(rows, 2)),
        numbers.map(lambda values: np.array(values[:rows], dtype=np.float32)),
        numbers.map(lambda values: torch.tensor(values).reshape(rows, 2)),
        numbers.map(lambda values: np.array([str(value) for value in values[:rows]], dtype=object)),
    )


@st.composite
def batches(draw: st.DrawFn, depth: int = 2, rows: int | None = None) -> Batch:
    rows = draw(st.integers(1, 5)) if rows is None else rows
    values = leaves(rows)
    if depth:
        values = st.one_of(values, batches(depth=depth - 1, rows=rows), st.just(None))
    content = draw(st.dictionaries(NAMES, values, max_size=3))
    return Batch({"always": np.arange(rows), **content})


LAWS = settings(deadline=None, max_examples=60)


@LAWS
@given(batches(), st.integers(1, 6), st.booleans())
def test_pieces_together_are_the_whole(batch: Batch, size: int, merge_last: bool) -> None:
    pieces = list(batch.split(size, shuffle=False, merge_last=merge_last))
    assert Batch.cat(pieces) == batch
    assert sum(map(len, pieces)) == len(batch)


@LAWS
@given(batches(), st.data())
def test_a_row_can_be_taken_out_and_put_back(batch: Batch, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(batch) - 1))
    before, taken = pickle.loads(pickle.dumps(batch)), pickle.loads(pickle.dumps(batch[row : row + 1]))
    batch.empty_(row)
    batch[row : row + 1] = taken
    assert batch == before


@LAWS
@given(batches())
def test_stacked_rows_are_the_whole(batch: Batch) -> None:
    stacked = Batch.stack([batch[row] for row in range(len(batch))])
    for (name, value), (other, again) in zip(batch.items(), stacked.items(), strict=True):
        assert name == other
        if isinstance(value, np.ndarray | torch.Tensor):
            assert np.array_equal(np.asarray(value), np.asarray(again))


@LAWS
@given(batches(), st.data())
def test_every_leaf_is_indexed_alike(batch: Batch, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6)), dtype=np.int64)
    assert batch[index] == batch[torch.from_numpy(index)] == batch[index.tolist()]
    assert batch[index]["always"].tolist() == index.tolist()
    assert batch[::-1] == batch[np.arange(len(batch))[::-1]]


@LAWS
@given(batches())
def test_copies_and_conversions_have_the_same_content(batch: Batch) -> None:
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert Batch(batch, copy=True) == batch
    assert batch.to_torch() == batch
    assert batch.to_torch().to_numpy() == batch
    assert Batch(batch.to_dict()) == batch
