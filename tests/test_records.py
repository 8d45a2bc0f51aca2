"""Receipts: masks and counts that agree, addresses that pickle."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from replay_service.records import ConditionalUpdateResult, ServiceAddress, UpdateResult


def test_update_result_counts() -> None:
    result = UpdateResult(torch.tensor([True, False, True]))
    assert (result.updated_count, result.skipped_count) == (2, 1)


def test_rows_of_a_conditional_update_are_partitioned() -> None:
    updated = torch.tensor([True, False, False, False])
    rejected = torch.tensor([False, True, False, False])
    result = ConditionalUpdateResult(updated, rejected)
    assert (result.updated_count, result.version_rejected_count, result.stale_count) == (1, 1, 2)
    assert result.stale.tolist() == [False, False, True, True]


def test_without_versions_nothing_is_rejected() -> None:
    result = ConditionalUpdateResult(torch.tensor([True, False]))
    assert result.version_rejected is None
    assert (result.updated_count, result.version_rejected_count, result.stale_count) == (1, 0, 1)
    assert result.stale.tolist() == [False, True]


@pytest.mark.parametrize(
    "record",
    [UpdateResult(torch.ones(1)), ConditionalUpdateResult(torch.ones(1)), ServiceAddress("a", "b")],
    ids=lambda record: type(record).__name__,
)
def test_records_are_frozen(record: object) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, None)  # type: ignore[arg-type]


def test_an_address_pickles_and_compares() -> None:
    address = ServiceAddress("replay", "tests", batch_size=4)
    assert pickle.loads(pickle.dumps(address)) == address
    assert hash(address) == hash(ServiceAddress("replay", "tests", batch_size=4))
    assert address != ServiceAddress("replay", "tests", batch_size=5)
