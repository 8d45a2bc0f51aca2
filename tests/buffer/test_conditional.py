"""Late writes: patch only the record that was read, and only with something newer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from tests.buffer.versioned_rows import held_handles, state_patch, states_of, versioned_buffer, versioned_rows


def test_the_documents_example() -> None:
    buffer = versioned_buffer()
    sample = buffer.sample()
    refreshed = torch.ones(4, 3)
    result = buffer.update_if_present(
        index=sample["index"], generation=sample["index_generation"], patch={"state": refreshed}
    )
    assert (result.updated_count, result.stale_count) == (4, 0)
    assert {index for index, state in enumerate(states_of(buffer)) if state} == set(sample["index"].tolist())


def test_recycled_slots_are_skipped() -> None:
    buffer = versioned_buffer(capacity=4)
    held = held_handles(buffer, 0, 1, 2, 3)
    buffer.extend(versioned_rows(2, start=10))
    result = buffer.update_if_present(**held, patch=state_patch(1, 2, 3, 4))
    assert result.updated.tolist() == [False, False, True, True]
    assert result.stale.tolist() == [True, True, False, False]
    assert result.version_rejected is None
    assert states_of(buffer) == [0, 0, 3, 4]
    assert buffer[:]["observation"][:, 0].tolist() == [10, 11, 2, 3]


def test_out_of_range_is_stale_not_an_error() -> None:
    buffer = versioned_buffer()
    index = torch.tensor([0, 4, 99, -1])
    for generation in (torch.zeros(4, dtype=torch.int64), torch.full((4,), -1)):
        result = buffer.update_if_present(index=index, generation=generation, patch=state_patch(1, 2, 3, 4))
        assert result.updated.tolist() == [generation[0] == 0, False, False, False]
    assert states_of(buffer) == [1, 0, 0, 0]


def test_emptying_makes_every_handle_stale() -> None:
    buffer = versioned_buffer()
    held = held_handles(buffer, 0, 1)
    buffer.empty()
    assert buffer.update_if_present(**held, patch=state_patch(1, 2)).stale_count == 2
    buffer.extend(versioned_rows(4))
    assert buffer.update_if_present(**held, patch=state_patch(1, 2)).stale_count == 2
    assert states_of(buffer) == [0, 0, 0, 0]


def test_a_stamp_read_from_an_emptied_slot_names_nothing() -> None:
    buffer = versioned_buffer()
    buffer.empty()
    assert buffer.update_if_present(**held_handles(buffer, 0, 1), patch=state_patch(1, 2)).stale_count == 2
    buffer.extend(versioned_rows(1))
    assert states_of(buffer) == [0]


def test_records_that_nobody_stamped_cannot_be_named() -> None:
    storage = TensorStorage(versioned_rows(2))
    buffer = TensorDictReplayBuffer(storage=storage, writer=TensorDictRoundRobinWriter(track_generations=True))
    held = held_handles(buffer, 0, 1)
    assert held["generation"].tolist() == [-1, -1]
    assert buffer.update_if_present(**held, patch=state_patch(1, 2)).stale_count == 2
    assert states_of(buffer) == [0, 0]


def test_a_slot_named_twice_takes_the_last_row() -> None:
    buffer = versioned_buffer()
    result = buffer.update_if_present(**held_handles(buffer, 1, 1), patch=state_patch(5, 6))
    assert result.updated.tolist() == [True, True]
    assert states_of(buffer) == [0, 6, 0, 0]


def test_overwriting_in_place_keeps_the_record() -> None:
    buffer = versioned_buffer()
    held = held_handles(buffer, 2)
    buffer[[2]] = versioned_rows(1, start=50)
    assert buffer.update_if_present(**held, patch=state_patch(9)).updated_count == 1


def test_patches_may_be_tensordicts_and_nested() -> None:
    buffer = versioned_buffer()
    patch = TensorDict({"next": {"version": torch.full((1, 1), 4.0)}}, [1])
    assert buffer.update_if_present(**held_handles(buffer, 3), patch=patch).updated_count == 1
    assert buffer[:]["next", "version"].flatten().tolist() == [0, 0, 0, 4]


# -- versions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["version", ("next", "version")])
@pytest.mark.parametrize(("require_newer", "accepted"), [(False, [False, True, True]), (True, [False, False, True])])
def test_versions_decide(key: Any, require_newer: bool, accepted: list[bool]) -> None:
    buffer = versioned_buffer()
    held = held_handles(buffer, 0, 1, 2)
    first = buffer.update_if_present(**held, patch=state_patch(1, 1, 1), version_key=key, version=5)
    assert first.updated_count == 3
    result = buffer.update_if_present(
        **held,
        patch=state_patch(4, 5, 6),
        version_key=key,
        version=torch.tensor([4, 5, 6]),
        require_newer=require_newer,
    )
    assert result.updated.tolist() == accepted
    assert result.version_rejected is not None
    assert result.version_rejected.tolist() == [not flag for flag in accepted]
    assert (result.stale_count, result.version_rejected_count) == (0, accepted.count(False))
    assert states_of(buffer) == [4.0 + place if ok else 1.0 for place, ok in enumerate(accepted)] + [0]
    stored = buffer[:][key].flatten().tolist()
    assert stored == [4 + place if ok else 5 for place, ok in enumerate(accepted)] + [0]


def test_an_outdated_retry_changes_nothing_and_says_the_same() -> None:
    buffer = versioned_buffer()
    held = held_handles(buffer, 0, 1)
    buffer.update_if_present(**held, patch=state_patch(9, 9), version_key="version", version=9, require_newer=True)
    before = buffer[:]
    retries = [
        buffer.update_if_present(**held, patch=state_patch(1, 1), version_key="version", version=9, require_newer=True)
        for _ in range(3)
    ]
    assert {tuple(retry.version_rejected.tolist()) for retry in retries} == {(True, True)}  # type: ignore[union-attr]
    assert bool((buffer[:] == before).all())


def test_of_one_slot_the_highest_version_of_a_call_is_applied() -> None:
    buffer = versioned_buffer()
    result = buffer.update_if_present(
        **held_handles(buffer, 1, 1, 1, 2),
        patch=state_patch(3, 7, 5, 1),
        version_key="version",
        version=torch.tensor([3, 7, 5, 1]),
    )
    assert result.updated.tolist() == [False, True, False, True]
    assert result.version_rejected is not None
    assert result.version_rejected.tolist() == [True, False, True, False]
    assert states_of(buffer) == [0, 7, 1, 0]
    assert buffer[:]["version"].tolist() == [0, 7, 1, 0]


def test_stale_rows_are_not_counted_as_outdated() -> None:
    buffer = versioned_buffer(capacity=4)
    held = held_handles(buffer, 0, 3)
    buffer.extend(versioned_rows(1))
    result = buffer.update_if_present(**held, patch=state_patch(1, 2), version_key="version", version=-1)
    assert (result.updated_count, result.version_rejected_count, result.stale_count) == (0, 1, 1)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.booleans(),
)
def test_any_call_ends_as_one_by_one(rows: list[tuple[int, int]], stored: list[int], newer: bool) -> None:
    """Against the rule itself: per slot, the highest version that beats what is stored, the last of equals."""
    buffer = versioned_buffer()
    buffer.set_("version", torch.tensor(stored))
    slots, versions = (list(part) for part in zip(*rows, strict=True))
    result = buffer.update_if_present(
        **held_handles(buffer, *slots),
        patch=state_patch(*(float(place + 1) for place in range(len(rows)))),
        version_key="version",
        version=torch.tensor(versions),
        require_newer=newer,
    )
    winners = set()
    for slot in range(4):
        better = [
            (version, place)
            for place, (named, version) in enumerate(rows)
            if named == slot and (version > stored[slot] if newer else version >= stored[slot])
        ]
        if better:
            winners.add(max(better)[1])
    assert {place for place, flag in enumerate(result.updated.tolist()) if flag} == winners
    assert (~result.updated).tolist() == result.version_rejected.tolist()  # type: ignore[union-attr]
    expected = {slots[place]: (float(place + 1), versions[place]) for place in winners}
    assert states_of(buffer) == [expected.get(slot, (0.0, 0))[0] for slot in range(4)]
    assert buffer[:]["version"].tolist() == [
        expected[slot][1] if slot in expected else stored[slot] for slot in range(4)
    ]


# -- refusals -----------------------------------------------------------------------------------------------------------


REFUSED: list[tuple[str, dict[str, Any], type, str]] = [
    (
        "unknown entry",
        {"patch": {"nothing": torch.zeros(2)}},
        LayoutError,
        r"patch key \(nothing\) must be one of .*next\.version",
    ),
    ("dtype", {"patch": {"state": torch.zeros(2, 3, dtype=torch.float64)}}, LayoutError, "state: float32"),
    (
        "row shape",
        {"patch": {"state": torch.zeros(2, 1)}},
        LayoutError,
        r"state: float32\[3\]; got state: float32\[1\]",
    ),
    ("rows", {"patch": state_patch(1, 2, 3)}, LayoutError, r"patch \(3 rows\) must have one row per index; got 2"),
    ("one bad of two", {"patch": {**state_patch(1, 2), "version": torch.zeros(2)}}, LayoutError, "version: int64"),
    ("generations", {"generation": torch.zeros(3, dtype=torch.int64)}, ValueError, r"generation \(3 entries\)"),
    (
        "fractional index",
        {"index": torch.tensor([0.0, 1.0])},
        TypeError,
        "index must be integers or flags; got float32",
    ),
    ("mask", {"index": torch.tensor([True, False])}, TypeError, "index must be integers; got bool"),
    ("no version", {"version_key": "version"}, ValueError, "given together"),
    ("no version key", {"version": 3}, ValueError, "given together"),
    (
        "version key in patch",
        {"version_key": "state", "version": 3},
        ValueError,
        r"version_key \(state\) must not be in patch",
    ),
    ("unknown version key", {"version_key": "v", "version": 3}, KeyError, r"key \(v\) must be one of"),
    (
        "version key is no scalar",
        {"version_key": "observation", "version": 3},
        TypeError,
        r"version_key \(observation\)",
    ),
    ("versions", {"version_key": "version", "version": torch.tensor([1, 2, 3])}, ValueError, r"version \(3 entries\)"),
    ("fractional version", {"version_key": "version", "version": 2.5}, ValueError, r"version \(2\.5\) .* int64"),
    ("NaN version", {"version_key": ("next", "version"), "version": float("nan")}, ValueError, "finite"),
    (
        "rounded version",
        {"version_key": ("next", "version"), "version": 2**24 + 1},
        ValueError,
        r"version \(16777217\)",
    ),
]


@pytest.mark.parametrize(
    ("changed", "error", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused_calls_change_nothing(changed: dict[str, Any], error: type, words: str) -> None:
    buffer = versioned_buffer()
    before, stamps = buffer[:], buffer.writer.generations_of(torch.arange(8))
    call = {**held_handles(buffer, 0, 1), "patch": state_patch(1, 2), **changed}
    with pytest.raises(error, match=words):
        buffer.update_if_present(**call)
    assert bool((buffer[:] == before).all())
    assert torch.equal(stamps, buffer.writer.generations_of(torch.arange(8)))


def test_a_narrow_version_column_does_not_wrap() -> None:
    buffer = versioned_buffer(rows=0)
    buffer.extend(TensorDict({"x": torch.zeros(2), "v": torch.zeros(2, dtype=torch.uint8)}, [2]))
    held = held_handles(buffer, 0, 1)
    with pytest.raises(ValueError, match=r"version \(300\) must be a number that v can store exactly: uint8"):
        buffer.update_if_present(**held, patch={"x": torch.ones(2)}, version_key="v", version=300)
    assert buffer.update_if_present(**held, patch={"x": torch.ones(2)}, version_key="v", version=255).updated_count == 2


def test_without_stamps_there_are_no_late_writes() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(versioned_rows(2))
    zeros = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"track_generations=True"):
        buffer.update_if_present(index=zeros, generation=zeros, patch=state_patch(1))


def test_a_storage_without_columns_cannot_be_patched() -> None:
    buffer = TensorDictReplayBuffer(storage=ListStorage(4), writer=RoundRobinWriter(track_generations=True))
    buffer.extend(versioned_rows(2))
    with pytest.raises(TypeError, match="columnar storage to patch; got ListStorage"):
        buffer.update_if_present(**held_handles(buffer, 0), patch=state_patch(1))
