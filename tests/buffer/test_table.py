"""Tables: columns of one layout."""

from __future__ import annotations

import pytest
import torch

from replay_service.buffer.columns import allocate
from replay_service.buffer.table import Table
from replay_service.errors import LayoutError
from replay_service.structure import Rows, flatten_rows


def _table() -> Table:
    rows = flatten_rows({"a": torch.zeros(1, 2), "n": {"b": torch.zeros(1, dtype=torch.int64)}})
    return Table(allocate(rows.leaves(), 4, torch.device("cpu")), rows.spec)


def _rows(*values: int) -> Rows:
    numbers = torch.tensor(values)
    return flatten_rows({"a": numbers.float()[:, None].repeat(1, 2), "n": {"b": numbers}})


def test_checked_rows_are_in_the_tables_order() -> None:
    table = _table()
    swapped = flatten_rows({"n": {"b": torch.tensor([1])}, "a": torch.ones(1, 2)})
    checked = table.checked(swapped)
    assert checked.checked
    assert [tuple(tensor.shape) for tensor in checked.tensors] == [(1, 2), (1,)]
    assert checked.spec == table.spec


def test_rows_are_written_whole() -> None:
    table = _table()
    table.write(1, table.checked(_rows(1, 2)))
    table.write_at(torch.tensor([3, 0, 3]), table.checked(_rows(7, 8, 9)))
    assert table.column(("n", "b")).tensor.tolist() == [8, 1, 2, 9]
    assert table.column("a").tensor[:, 1].tolist() == [8, 1, 2, 9]
    assert [part[:, ...].shape[0] for part in table.gathered(torch.tensor([2, 2]))] == [2, 2]


def test_size() -> None:
    assert (_table().records, _table().size_bytes) == (4, 4 * (8 + 8))


def test_more_columns_make_another_table() -> None:
    table = _table()
    fresh = allocate(flatten_rows({"n": {"c": torch.zeros(1)}, "z": torch.zeros(1)}).leaves(), 4, torch.device("cpu"))
    wider = table.with_columns(fresh)
    assert [leaf.key for leaf in wider.leaves] == [("a",), ("n", "b"), ("n", "c"), ("z",)]
    assert [leaf.key for leaf in table.leaves] == [("a",), ("n", "b")]
    assert wider.column("a") is table.column("a")
    for misplaced in ({"a": {"x": torch.zeros(1)}}, {"n": torch.zeros(1)}):
        with pytest.raises(LayoutError):
            table.with_columns(allocate(flatten_rows(misplaced).leaves(), 4, torch.device("cpu")))


def test_unknown_columns_are_named() -> None:
    with pytest.raises(KeyError, match=r"key \(n\.c\) must be one of \['a', 'n\.b'\]"):
        _table().column(("n", "c"))
