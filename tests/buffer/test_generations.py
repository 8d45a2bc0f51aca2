"""Generation stamps: one per write, never back, -1 for none."""

from __future__ import annotations

import pytest
import torch

from replay_service.buffer.generations import NO_STAMP, Generations

SIZES = [(8, 1 << 24), (1 << 62, 4)]  # allocated at once, and growing on demand


@pytest.fixture(params=SIZES, ids=["dense", "growing"])
def stamps(request: pytest.FixtureRequest) -> Generations:
    return Generations(*request.param)


def _first(stamps: Generations, count: int = 6) -> list[int]:
    return stamps.of(torch.arange(count)).tolist()  # type: ignore[no-any-return]


def test_never_written_slots_have_none(stamps: Generations) -> None:
    assert _first(stamps) == [NO_STAMP] * 6
    assert stamps.of(torch.tensor([-1, 10**15])).tolist() == [NO_STAMP, NO_STAMP]


def test_the_first_write_is_zero(stamps: Generations) -> None:
    stamps.advance_range(0, 3)
    assert _first(stamps) == [0, 0, 0, -1, -1, -1]


def test_one_stamp_per_write(stamps: Generations) -> None:
    stamps.advance(torch.tensor([1, 1, 4]))
    stamps.advance_range(1, 2, writes=3)
    assert _first(stamps) == [-1, 4, -1, -1, 0, -1]
    stamps.advance(torch.zeros(0, dtype=torch.int64))
    assert _first(stamps) == [-1, 4, -1, -1, 0, -1]


def test_emptying_makes_written_slots_stale_and_no_others(stamps: Generations) -> None:
    stamps.advance_range(0, 2)
    stamps.advance_written()
    assert _first(stamps) == [1, 1, -1, -1, -1, -1]


def test_restart_stamps_what_came_and_outdates_what_was(stamps: Generations) -> None:
    stamps.advance_range(1, 4)
    stamps.restart(2)
    assert _first(stamps) == [0, 1, 1, 1, -1, -1]


def test_any_shape_of_index(stamps: Generations) -> None:
    stamps.advance_range(0, 2)
    assert stamps.of(torch.tensor([[0, 1], [2, -1]])).tolist() == [[0, 0], [-1, -1]]
    assert stamps.of(torch.tensor(0)).shape == ()


def test_state_is_copied_both_ways(stamps: Generations) -> None:
    stamps.advance_range(0, 3)
    state = stamps.state_dict()
    stamps.advance_range(0, 3)
    other = Generations(8)
    other.load_state_dict(state)
    other.advance_range(0, 6)
    assert _first(other) == [1, 1, 1, 0, 0, 0]
    assert state["stamps"][:3].tolist() == [0, 0, 0]
    assert _first(stamps)[:3] == [1, 1, 1]


def test_a_state_of_more_slots_is_cut() -> None:
    large, small = Generations(8), Generations(4)
    large.advance_range(0, 8)
    small.load_state_dict(large.state_dict())
    assert _first(small) == [0, 0, 0, 0, -1, -1]


def test_counters_grow_as_slots_are_written() -> None:
    stamps = Generations(1 << 62)
    stamps.advance_range(5_000, 5_001)
    stamps.advance(torch.tensor([20_000]))
    assert stamps.of(torch.tensor([5_000, 20_000, 4_999])).tolist() == [0, 0, -1]
    assert stamps.state_dict()["stamps"].numel() < 100_000


def test_dense_counters_never_move() -> None:
    stamps = Generations(8)
    stamps.advance_range(0, 8)
    before = stamps.of(torch.arange(8))
    stamps.advance_range(0, 8)
    assert stamps.state_dict()["stamps"].numel() == 8
    assert before.tolist() == [0] * 8, "what was given out is a copy"
