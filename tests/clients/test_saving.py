"""Checkpoints through a handle: the service writes and reads, everybody else goes on, and errors are those of a local buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients import ReplayClient
from replay_service import CheckpointError, LayoutError, ReplayTimeoutError
from replay_service.records import SaveReceipt, ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.inproc import InprocChannel
from tests.buffer.persist.buffers import make, rows, same

CAPACITY = 600


def handle_on(buffer: Any) -> ReplayClient:
    return ReplayClient(
        ServiceAddress("near", "tests", buffer.batch_size, "auto"), InprocChannel(Dispatch(buffer).serve)
    )


@pytest.fixture
def buffer() -> Any:
    made = make(capacity=CAPACITY)
    made.extend(rows(CAPACITY))
    return made


@pytest.fixture
def client(buffer: Any) -> Iterator[ReplayClient]:
    with handle_on(buffer) as client:
        yield client


def test_save_and_load(buffer: Any, client: ReplayClient, tmp_path: Path) -> None:
    receipt = client.dumps(tmp_path / "c")
    assert isinstance(receipt, SaveReceipt)
    assert (receipt.path, receipt.written_bytes) == (str(tmp_path / "c"), receipt.size_bytes)
    twin = make(capacity=CAPACITY, seed=3)
    twin.load_state_dict(buffer.state_dict())
    client.extend(rows(50, stamp=9000))
    assert client.dumps(str(tmp_path / "d")).written_bytes < receipt.written_bytes
    assert client.loads(tmp_path / "c") is None
    assert same(buffer, twin)


def test_a_path_is_taken_from_the_folder_of_the_client(
    buffer: Any, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert client.dumps("here/c").path == str(tmp_path / "here" / "c")
    client.loads(Path("here") / "c")


def test_errors_are_those_of_a_local_buffer(buffer: Any, client: ReplayClient, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    for call, path, kind, words in (
        (client.dumps, "mine", CheckpointError, "choose another path"),
        (client.loads, "mine", CheckpointError, r"has no manifest\.json"),
        (client.loads, "nowhere", OSError, "nothing is there"),
    ):
        with pytest.raises(kind, match=words):
            call(tmp_path / path)
    client.dumps(tmp_path / "c")
    with handle_on(make(capacity=10)) as small, pytest.raises(LayoutError, match="max_size"):
        small.loads(tmp_path / "c")
    with pytest.raises(TypeError):
        client.dumps(3)  # type: ignore[arg-type]
    for wrong in (0, -1.0):
        with pytest.raises(ValueError, match="timeout"):
            client.dumps(tmp_path / "c", timeout=wrong)


def test_other_calls_go_on_and_a_save_outlives_the_patience_of_its_client(
    buffer: Any, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, real = threading.Event(), buffer.dumps

    def slow(path: str) -> SaveReceipt:
        assert may_end.wait(60)
        receipt: SaveReceipt = real(path)
        return receipt

    monkeypatch.setattr(buffer, "dumps", slow)
    with pytest.raises(ReplayTimeoutError, match=r"timeout \(0.05 s\) must cover dumps .* it goes on in the service"):
        client.dumps(tmp_path / "c", timeout=0.05)
    receipts: list[SaveReceipt] = []
    saver = threading.Thread(target=lambda: receipts.append(client.dumps(tmp_path / "d")))
    saver.start()
    client.extend(rows(3))
    assert client.sample().shape == (8,)
    assert not receipts
    may_end.set()
    saver.join()
    assert receipts[0].path.endswith("d")
    for thread in threading.enumerate():
        if thread.name == "replay-checkpoint":
            thread.join()
    client.loads(tmp_path / "c")


def test_a_ticket_that_nobody_has(client: ReplayClient) -> None:
    from clients.saving import checkpoint_request
    from replay_service.wire.verbs import Verb

    dispatch = Dispatch(make())
    channel = InprocChannel(dispatch.serve)
    with pytest.raises(ValueError, match="ticket"):
        channel.call(checkpoint_request(Verb.DUMPS, {"ticket": "none"}), 5.0)
