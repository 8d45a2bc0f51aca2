"""Checkpoints of running services, on the service's own node."""

from __future__ import annotations

from pathlib import Path

from deploy.connection import joined
from deploy.state import ServiceRecord
from replay_service import SaveReceipt

__all__ = ["load_service", "save_service", "saved_line"]

MEGA = 1e6


def save_service(record: ServiceRecord, path: Path, timeout_s: float) -> SaveReceipt:
    """Lets a service save its buffer; calls of others go on.

    Raises:
        CheckpointError, OSError: as `dumps` of the buffer.
        ServiceUnavailableError, ReplayTimeoutError: the service is not there, or the save takes longer.
    """
    from clients import connect

    with joined(record.address), connect(record.name, namespace=record.namespace) as client:
        receipt: SaveReceipt = client.dumps(path, timeout=timeout_s)
        return receipt


def load_service(record: ServiceRecord, path: Path, timeout_s: float) -> int:
    """Lets a service load a checkpoint; the number of records or steps that it holds then.

    Raises:
        CheckpointError, LayoutError, OSError: as `loads` of the buffer.
        ServiceUnavailableError, ReplayTimeoutError: the service is not there, or the load takes longer.
    """
    from clients import connect

    with joined(record.address), connect(record.name, namespace=record.namespace) as client:
        client.loads(path, timeout=timeout_s)
        return len(client)


def saved_line(name: str, receipt: SaveReceipt) -> str:
    """What a save did, in one line."""
    return (
        f"{name!r} is saved in {receipt.path}: {receipt.size_bytes / MEGA:,.1f} MB, of which {receipt.written_bytes / MEGA:,.1f} MB were "
        f"written in {receipt.took_s:.2f} s; others waited {1000 * receipt.longest_lock_s:.1f} ms at most."
    )
