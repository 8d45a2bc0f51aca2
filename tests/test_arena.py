"""Arenas: memory is lent again only when nobody can see it any more."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from replay_service.arena import ALIGNMENT, Arena, aligned

SIZE = 1 << 20


@pytest.mark.parametrize(("size", "rounded"), [(0, 0), (1, 64), (63, 64), (64, 64), (65, 128)])
def test_aligned(size: int, rounded: int) -> None:
    assert aligned(size) == rounded


@pytest.mark.parametrize("size", [1, 100, SIZE, SIZE + 1])
def test_buffers_are_aligned_and_writable(size: int) -> None:
    buffer = Arena().take(size)
    assert (buffer.nbytes, buffer.dtype) == (size, np.uint8)
    assert buffer.ctypes.data % ALIGNMENT == 0
    buffer[:] = 7


def test_what_was_dropped_is_lent_again() -> None:
    arena = Arena()
    first = arena.take(SIZE)
    address = first.ctypes.data
    del first
    again = arena.take(SIZE - 1000)
    assert again.ctypes.data == address
    assert arena.retained_bytes() < 2 * SIZE


@pytest.mark.parametrize(
    "hold",
    [
        lambda buffer: buffer[10:20],
        lambda buffer: torch.from_numpy(buffer),
        lambda buffer: torch.from_numpy(buffer).view(torch.float32)[:4],
        lambda buffer: torch.from_numpy(buffer)[:8].numpy(),
        lambda buffer: torch.from_numpy(buffer).untyped_storage(),
        lambda buffer: memoryview(buffer)[5:],
        lambda buffer: torch.from_dlpack(torch.from_numpy(buffer)[:8]),
    ],
    ids=["slice", "tensor", "view", "array of a tensor", "storage", "memoryview", "dlpack"],
)
def test_what_somebody_can_see_is_not_lent_again(hold: object) -> None:
    arena = Arena()
    buffer = arena.take(SIZE)
    address = buffer.ctypes.data
    held = hold(buffer)  # type: ignore[operator]
    del buffer
    assert arena.take(SIZE).ctypes.data != address
    del held
    taken = [arena.take(SIZE) for _ in range(2)]
    assert address in {one.ctypes.data for one in taken}


def test_memory_is_bounded() -> None:
    arena = Arena(max_buffers=3, max_bytes=4 * SIZE)
    held = [arena.take(SIZE) for _ in range(10)]
    assert arena.retained_bytes() <= 4 * SIZE
    assert len({one.ctypes.data for one in held}) == 10
    held.clear()
    assert arena.take(8 * SIZE).nbytes == 8 * SIZE
    assert arena.retained_bytes() <= 4 * SIZE


def test_a_large_buffer_is_not_pinned_by_a_small_batch() -> None:
    arena = Arena()
    large = arena.take(64 * SIZE)
    address = large.ctypes.data
    del large
    assert arena.take(SIZE).ctypes.data != address


def test_old_sizes_fade_out() -> None:
    arena = Arena(max_buffers=2)
    for factor in (1, 8, 64, 8, 64):
        arena.take(factor * SIZE)
    assert arena.retained_bytes() >= 64 * SIZE
    assert arena.retained_bytes() < 90 * SIZE


def test_threads_never_share_a_buffer() -> None:
    arena = Arena()
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            buffer = arena.take(200_000)
            buffer[::1000] = mark
            if not (buffer[::1000] == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
