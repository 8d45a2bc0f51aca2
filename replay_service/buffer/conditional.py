"""Late writes: patch a record only if it is still the one that was read, and only with something newer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.arguments import entry_key, flag_of, index_array, numbers_of
from replay_service.buffer.index import Index
from replay_service.buffer.storages.base import Storage
from replay_service.errors import LayoutError, key_name
from replay_service.records import ConditionalUpdateResult
from replay_service.specs import Key
from replay_service.structure import Rows, flatten_rows

__all__ = ["live_records", "update_if_present"]


def live_records(storage: Storage, index: Index, generation: Tensor) -> tuple[Tensor, Tensor]:
    """Which (index, generation) pairs still name the record they were read from.

    Args:
        storage: the storage, whose writer tracks generations.
        index: int64 `[B]`, or with lanes `[B, ndim]` or a tuple of `ndim` coordinates `[B]`. Out of range is stale, not an error.
        generation: int64 `[B]`.

    Returns:
        flat record numbers int64 `[B]` (0 where there is none), and the mask bool `[B]` of live ones.

    Raises:
        ValueError: no stamps are kept, or index and generation differ in length.
    """
    stamps = storage.generations
    if stamps is None:
        raise ValueError(
            "generation must come from a writer that tracks generations; use RoundRobinWriter(track_generations=True)"
        )
    coordinates = _coordinates(storage, index)
    generation = _integers("generation", generation)
    if coordinates[0].numel() != generation.numel():
        raise ValueError(
            f"generation ({generation.numel()} entries) must have one entry per index; got {coordinates[0].numel()}"
        )
    live = (stamps.of(coordinates[0]) == generation) & (generation >= 0) & (coordinates[0] < storage.filled)
    records = torch.zeros_like(coordinates[0])
    for coordinate, extent in zip(coordinates, storage.shape, strict=True):
        live &= (coordinate >= 0) & (coordinate < extent)
        records = records * extent + coordinate
    return torch.where(live, records, 0), live


def update_if_present(
    storage: Storage,
    index: Index,
    generation: Tensor,
    patch: Any,
    version_key: str | Key | None = None,
    version: Tensor | int | None = None,
    require_newer: bool = False,
) -> tuple[ConditionalUpdateResult, Tensor]:
    """Patches live records; with `version_key`, only those whose stored version is older (or equal, unless a newer one is required).

    The caller holds the buffer's lock. Everything is validated before the first write.

    Returns:
        the result, and the flat numbers of the records that were changed, int64 `[n]`.

    Raises:
        LayoutError: a key of `patch` is not stored, or its dtype or row shape differs.
        ValueError: `version_key` and `version` are not given together, `version_key` is in `patch`, or lengths differ.
        TypeError: the storage has no columns, or `version_key` is no integer or float scalar per record.
    """
    newer_only = flag_of("require_newer", require_newer)
    if not storage.columnar:
        raise TypeError(f"update_if_present must have a columnar storage to patch; got {type(storage).__name__}")
    records, live = live_records(storage, index, generation)
    count = records.numel()
    rows = _checked_patch(storage, patch, count)
    if (version_key is None) != (version is None):
        raise ValueError("version_key and version must be given together")
    winners, rejected = live, None
    versions: Tensor | None = None
    if version_key is not None:
        key = entry_key("version_key", version_key)
        if key in rows.keys:
            raise ValueError(
                f"version_key ({key_name(key)}) must not be in patch: the accepted version is written with it"
            )
        versions = _versions(storage, key, version, count)
        winners = _newest(records, live, versions, _stored_versions(storage, key, records), newer_only)
        rejected = live & ~winners
    chosen = winners.nonzero().squeeze(1)
    cells = records[chosen]
    for name, tensor in zip(rows.keys, rows.tensors, strict=True):
        storage.write_cells(name, tensor[chosen.to(tensor.device)], cells)
    if versions is not None and version_key is not None:
        column = storage.column(version_key)
        shaped = versions[chosen].to(column.dtype).view(-1, *column.shape[storage.ndim :])
        storage.write_cells(version_key, shaped, cells)
    return ConditionalUpdateResult(winners, rejected), cells


def _coordinates(storage: Storage, index: Index) -> tuple[Tensor, ...]:
    if isinstance(index, tuple):
        parts = tuple(_integers("index", part) for part in index)
    else:
        whole = index_array(index)
        if whole.ndim == 2 and whole.shape[1] == storage.ndim:
            parts = tuple(_integers("index", part) for part in whole.unbind(1))
        else:
            parts = (_integers("index", whole),)
    if len(parts) != storage.ndim:
        raise ValueError(f"index ({len(parts)} coordinates) must have {storage.ndim}: pass what extend or sample gave")
    return parts


def _integers(name: str, given: Any) -> Tensor:
    """`given` as int64 `[n]`; flags and fractions are no numbers of slots or writes."""
    values = numbers_of(name, given).to("cpu").reshape(-1)
    if (values.dtype == torch.bool or values.is_floating_point() or values.is_complex()) and values.numel():
        raise TypeError(f"{name} must be integers; got {str(values.dtype).removeprefix('torch.')}")
    return values.to(torch.int64)


def _checked_patch(storage: Storage, patch: Any, count: int) -> Rows:
    rows = patch if isinstance(patch, Rows) else flatten_rows(patch)
    if rows.count != count:
        raise LayoutError(f"patch ({rows.count} rows) must have one row per index; got {count}")
    leaves = {leaf.key: leaf for leaf in storage.leaves() or ()}
    for leaf in rows.leaves():
        stored = leaves.get(leaf.key)
        if stored is None:
            known = [key_name(key) for key in leaves]
            raise LayoutError(f"patch key ({key_name(leaf.key)}) must be one of {known}")
        if stored != leaf:
            raise LayoutError(f"patch must fit the stored layout: {stored}; got {leaf}")
    return rows


def _versions(storage: Storage, key: Key, version: Tensor | int | None, count: int) -> Tensor:
    column = storage.column(key)
    if column[0].numel() != storage.lanes or column.dtype == torch.bool or column.is_complex():
        raise TypeError(f"version_key ({key_name(key)}) must name one number per record; got {list(column.shape)}")
    versions = _comparable(numbers_of("version", version).to("cpu").reshape(-1))
    if versions.numel() not in (1, count):
        raise ValueError(
            f"version ({versions.numel()} entries) must be a scalar or have one entry per index; got {count}"
        )
    if versions.is_floating_point() and not bool(torch.isfinite(versions).all()):
        raise ValueError("version must be finite")
    # What is stored must be what was compared: a rounded or wrapped version would let outdated writers win.
    kept = versions.to(column.dtype).to(versions.dtype)
    if not bool((kept == versions).all()):
        wrong = versions[kept != versions][0].item()
        raise ValueError(
            f"version ({wrong}) must be a number that {key_name(key)} can store exactly: "
            f"{str(column.dtype).removeprefix('torch.')}"
        )
    return versions.expand(count)


def _stored_versions(storage: Storage, key: Key, records: Tensor) -> Tensor:
    column = storage.column(key)
    return _comparable(column.reshape(-1)[records.to(column.device)].to("cpu"))


def _comparable(versions: Tensor) -> Tensor:
    """In the widest dtype of its kind, so that no comparison rounds."""
    return versions.to(torch.float64 if versions.is_floating_point() else torch.int64)


def _newest(records: Tensor, live: Tensor, versions: Tensor, stored: Tensor, require_newer: bool) -> Tensor:
    """Rows that win against the stored version and against the other rows of this call (highest version; the last of equals)."""
    better = versions > stored if require_newer else versions >= stored
    winners = live & better
    candidates = winners.nonzero().squeeze(1)
    # Sorted by (record, version, position): the last row of each record's run is the one to apply.
    order = candidates[torch.argsort(versions[candidates], stable=True)]
    order = order[torch.argsort(records[order], stable=True)]
    beaten = order[:-1][records[order[:-1]] == records[order[1:]]]
    winners[beaten] = False
    return winners
