from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.trainers.checkpoint import Standing, load_checkpoint, save_checkpoint
from tests.clients.batch_policy import BatchPolicy
from tests.clients.trainers.test_trainers import Setup


class Learning(BatchPolicy):
    """Learns with momentum and noise, so that its future depends on its optimizer and its generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.nn.init.zeros_(self.net.weight)
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self._generator = torch.Generator().manual_seed(3)

    def learn(self, batch: Any, **kwargs: Any) -> Any:
        super().learn(batch)
        self._optimizer.zero_grad()
        loss = (self.net.weight - torch.randn((), generator=self._generator)).square().sum()
        loss.backward()
        self._optimizer.step()
        return {"loss": loss.item()}


def setup_of(policy: Learning) -> Setup:
    setup = Setup()
    setup.policy = setup.train.policy = setup.test.policy = policy
    return setup


def test_a_resumed_run_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run.pt"
    whole, part, resumed = Learning(), Learning(), Learning()
    setup_of(whole).offpolicy(max_epoch=4).run()
    setup_of(part).offpolicy(max_epoch=2, checkpoint=file).run()
    setup = setup_of(resumed)
    epochs = [
        (epoch, stat["env_step"], stat["gradient_step"], stat["best_epoch"])
        for epoch, stat, _ in setup.offpolicy(max_epoch=4, checkpoint=file, resume=True)
    ]
    assert epochs == [(3, 36, 18, 0), (4, 48, 24, 0)]
    assert torch.equal(resumed.net.weight, whole.net.weight)
    # No first test, and the best of before isn't overwritten.
    assert setup.calls[0] == ("train", 3, 24)
    assert "best" not in setup.calls


def test_without_a_file_a_run_begins_anew(tmp_path: Path) -> None:
    setup = setup_of(Learning())
    saved: list[tuple[int, ...]] = []
    trainer = setup.offpolicy(
        checkpoint=tmp_path / "run.pt", resume=True, save_checkpoint_fn=lambda *steps: saved.append(steps)
    )
    assert [epoch for epoch, _, _ in trainer] == [1, 2]
    assert saved == [(1, 12, 6), (2, 24, 12)]
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.pt"
    save_checkpoint(file, Learning(), Standing(epoch=1))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(file, Learning(), Standing(epoch=2))
    assert load_checkpoint(file, Learning()).epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    file.write_bytes(b"no such thing")
    with pytest.raises(ValueError, match=r"checkpoint \(.*run.pt\) must be a file that a trainer wrote"):
        load_checkpoint(file, Learning())
    torch.save({"other": 1}, file)
    with pytest.raises(ValueError, match="got another kind of file"):
        load_checkpoint(file, Learning())
    save_checkpoint(file, Learning(), Standing())
    with pytest.raises(ValueError, match=r"must be of this kind of policy; it has \['_generator', '_optimizer'\]"):
        load_checkpoint(file, BatchPolicy())
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match="must be a file that a trainer wrote"):
        load_checkpoint(file, Learning())
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt", Learning())


def test_what_is_refused_leaves_the_policy_as_it_was(tmp_path: Path) -> None:
    file, policy = tmp_path / "run.pt", Learning()
    save_checkpoint(file, policy, Standing(epoch=3))
    whole = file.read_bytes()
    content = torch.load(file, weights_only=True)

    def foreign(**changes: Any) -> bytes:
        torch.save({**content, **changes}, file)
        return file.read_bytes()

    weights = {name: value + 1 for name, value in content["policy"].items()}
    first = next(iter(weights))
    damaged = [
        *(whole[:length] for length in range(0, len(whole), max(1, len(whole) // 40))),
        *(whole[:place] + bytes(64) + whole[place + 64 :] for place in range(0, len(whole), max(64, len(whole) // 40))),
        foreign(policy={**weights, first: torch.zeros(77, 3)}),
        foreign(policy=weights, generators=dict.fromkeys(content["generators"], torch.zeros(3, dtype=torch.uint8))),
        foreign(policy=weights, parts={name: {"other": 1} for name in content["parts"]}),
        foreign(policy=weights, standing={"epochs": 3}),
        foreign(policy=[1]),
    ]
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    refused = 0
    for one in damaged:
        file.write_bytes(one)
        try:
            load_checkpoint(file, policy)
        except ValueError:
            refused += 1
        # Not all bytes of an archive are content.
        assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert refused > len(damaged) * 2 // 3
