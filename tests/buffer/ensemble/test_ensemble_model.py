"""Ensembles through random histories, against plain lists; and from several threads at once."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from replay_service import ReplayBufferEnsemble
from tests.buffer.ensembles import member, routed_rows, stamps_by_member
from tests.rows import assert_rows_are_whole

CAPACITY = 6
STEPS = 150


class _Rings:
    """What the buffers must hold: by buffer and slot, the stamp and how often the slot was written."""

    def __init__(self, members: int) -> None:
        self.slots: list[dict[int, list[int]]] = [{} for _ in range(members)]
        self.cursors = [0] * members

    def write(self, place: int, stamp: int) -> tuple[int, int]:
        slot = self.cursors[place]
        self.cursors[place] = (slot + 1) % CAPACITY
        writes = self.slots[place].get(slot, [0, -1])[1] + 1
        self.slots[place][slot] = [stamp, writes]
        return slot, writes

    def patch(self, place: int, slot: int, writes: int, stamp: int) -> bool:
        held = self.slots[place].get(slot)
        if held is None or held[1] != writes:
            return False
        held[0] = stamp
        return True

    def stamps(self) -> list[list[int]]:
        return [[held[slot][0] for slot in sorted(held)] for held in self.slots]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int) -> None:
    rng = random.Random(seed)
    members = rng.randint(1, 3)
    rb = ReplayBufferEnsemble(
        *(member(place, 0, capacity=CAPACITY) for place in range(members)),
        routing_key="who",
        batch_size=4 * members,
        generator=torch.Generator().manual_seed(seed),
    )
    rings, stamp = _Rings(members), 0
    known: list[Any] = []
    for _ in range(STEPS):
        kind = rng.choice(["extend", "extend", "add", "sample", "patch", "patch"])
        if kind in ("extend", "add"):
            ids = [rng.randrange(members) for _ in range(rng.randint(1, 2 * CAPACITY) if kind == "extend" else 1)]
            rows = routed_rows(ids, stamp)
            written = rb.extend(rows) if kind == "extend" else rb.add(rows[0]).unsqueeze(0)
            wanted = [rings.write(place, stamp + row) for row, place in enumerate(ids)]
            stamp += len(ids)
            assert list(zip(written["index"].tolist(), written["index_generation"].tolist(), strict=True)) == wanted
            known.append((written, written["index_generation"]))
        elif kind == "sample" and rb.can_sample():
            sample = rb.sample()
            index = sample["index"].reshape(-1)
            held = [
                rings.slots[i][s] for i, s in zip(*(index[n].tolist() for n in ("buffer_ids", "index")), strict=True)
            ]
            stamps = sample["index_generation"].flatten().tolist()
            assert list(zip(sample["action"].flatten().tolist(), stamps, strict=True)) == [tuple(h) for h in held]
            known.append((sample["index"], sample["index_generation"]))
        elif kind == "patch" and known:
            index, generation = rng.choice(known)
            patch = {"action": torch.arange(stamp, stamp + index.numel()).reshape(index.batch_size)}
            result = rb.update_if_present(index=index, generation=generation, patch=patch)
            flat = index.reshape(-1)
            named = zip(flat["buffer_ids"].tolist(), flat["index"].tolist(), generation.flatten().tolist(), strict=True)
            wanted_mask = [rings.patch(*record, stamp + row) for row, record in enumerate(named)]
            assert result.updated.flatten().tolist() == wanted_mask
            stamp += index.numel()
        assert stamps_by_member(rb) == rings.stamps()
        assert len(rb) == sum(map(len, rings.slots))


def test_from_several_threads() -> None:
    members = [member(place, 0, capacity=50) for place in range(3)]
    ensembles = [
        ReplayBufferEnsemble(*order, routing_key="who", batch_size=6, num_buffer_sampled=2)
        for order in (members, members[::-1])
    ]
    for rb in ensembles:
        rb.extend(routed_rows([0, 1, 2]))
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def run(work: Any) -> None:
        try:
            start.wait(20.0)
            for step in range(60):
                work(step)
        except BaseException as error:
            failures.append(error)

    def extend(rb: ReplayBufferEnsemble) -> Any:
        return lambda step: rb.extend(routed_rows([0, 1, 2, step % 3], stamp=4 * step))

    def draw(rb: ReplayBufferEnsemble) -> Any:
        def work(step: int) -> None:
            sample = rb.sample()
            assert_rows_are_whole(sample)
            patch = {"who": sample["who"]}
            result = rb.update_if_present(index=sample["index"], generation=sample["index_generation"], patch=patch)
            assert result.updated_count + result.stale_count == 6

        return work

    works = [work(rb) for rb in ensembles for work in (extend, draw)]
    works += [lambda step: members[0].extend(routed_rows([0, 0], stamp=step)), lambda step: ensembles[0].state_dict()]
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert ensembles[0].write_count == ensembles[1].write_count == 6 + 2 * 60 * 4 + 60 * 2
