"""The operator's day, with real processes: a Ray of our own, services in it, clients from elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.connection import accepts
from deploy.head import is_running, stop_head
from deploy.launch import down
from deploy.state import RayRecord, ServiceRecord, State, StateFile

CONFIG = """
[service]
name = "house"
batch_size = 8
[storage]
kind = "LazyTensorStorage"
capacity = 64
[writer]
kind = "TensorDictRoundRobinWriter"
track_generations = true
[resources]
num_cpus = 0.5
[ray]
num_cpus = 2
object_store_memory = "100MB"
"""

# A process that runs one command after the other, joining and leaving Ray each time: imports are paid for once.
SHELL = """
import json, sys
from typer.testing import CliRunner
from deploy.cli import app
from deploy.connection import joined, prefer_token

def kill(name, address):
    import ray
    with joined(address):
        ray.kill(ray.get_actor(name, namespace="replay-service"))
    return [0, "", ""]

def add_step(name, address):
    from clients import connect
    with joined(address), connect(name) as client:
        client.add({"obs": [1.0, 2.0], "act": 0, "rew": 1.0, "done": False})
        batch, slots = client.sample(3, n_step=2)
        return [len(client), str(slots.tolist()), type(client).__name__]

def invoke(*words):
    result = CliRunner().invoke(app, words)
    return [result.exit_code, result.stdout, result.stderr]

prefer_token()
for line in sys.stdin:
    command, *words = json.loads(line)
    own = {"kill": kill, "add_step": add_step}.get(command)
    print(json.dumps(own(*words) if own else invoke(command, *words)), flush=True)
"""

STEPS = """
[service]
name = "steps"
[episodic]
kind = "ReplayBuffer"
size = 8
[resources]
num_cpus = 0.5
"""

EXTEND = """
import torch
from tensordict import TensorDict

client.extend(TensorDict({"observation": torch.arange(20.0).reshape(10, 2)}, [10]))
batch = client.sample()
print(len(client), tuple(batch["observation"].shape), "index_generation" in batch)
client.close()
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class House:
    """A running service with what `up` printed, the folder that remembers it, and a shell to run commands in."""

    folder: Path
    file: Path
    printed: str
    shell: subprocess.Popen[str]

    @property
    def state(self) -> State:
        return StateFile(self.folder).read()

    @property
    def ray(self) -> RayRecord:
        record = self.state.ray
        assert record is not None
        return record

    def run(self, *words: str) -> Result:
        return self.ask(*words, "--state-dir", str(self.folder))

    def ask(self, *words: str) -> Result:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(json.dumps(words) + "\n")
        self.shell.stdin.flush()
        return Result(*json.loads(self.shell.stdout.readline()))


def python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment())


def environment() -> dict[str, str]:
    """Of an operator's shell: no Ray in sight."""
    hidden = ("RAY_ADDRESS", "RAY_AUTH_MODE")
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, "NO_COLOR": "1"}


def family_of(record: RayRecord) -> list[psutil.Process]:
    """Every process of a Ray that `up` started."""
    keeper = psutil.Process(record.pid)
    return [keeper, *keeper.children(recursive=True)]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    file = folder / "house.toml"
    file.write_text(CONFIG, encoding="utf-8")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SHELL], stdin=pipe, stdout=pipe, text=True, env=environment()
    ) as shell:
        try:
            done = python("-m", "deploy", "up", str(file), "--state-dir", str(folder))
            assert done.returncode == 0, done.stderr
            assert done.stderr.startswith("Starting Ray …\nCreating 'house' in the Ray at ")
            yield House(folder, file, done.stdout, shell)
        finally:
            shell.kill()
            started = StateFile(folder).read().ray
            if started is not None:
                stop_head(started)


def test_the_printed_lines_connect_a_plain_process(house: House) -> None:
    lines = re.findall(r"^    .+$", house.printed, flags=re.MULTILINE)
    done = python("-c", textwrap.dedent("\n".join(lines)) + EXTEND)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "10 (8, 2) True\n"


def test_status_tells_what_happened(house: House) -> None:
    result = house.run("status", "house", "--json", "--interval", "0.1")
    assert (result.code, result.err) == (0, "")
    (service,) = json.loads(result.out)["services"]
    assert (service["name"], service["namespace"], service["state"]) == ("house", "replay-service", "up")
    assert (service["size"], service["write_count"], service["capacity"]) == (10, 10, 64)
    assert service["memory_bytes"] > 1_000_000
    assert service["clients"] == 0
    assert service["rows_in_per_s"] == 0.0
    assert service["verbs"]["extend"]["rows"] == 10
    assert service["verbs"]["sample"]["route"] in ("ray", "distributed")
    assert service["verbs"]["sample"]["why"]


def test_watch_ends_cleanly_with_ctrl_c(house: House) -> None:
    words = ["-m", "deploy", "status", "--watch", "0.1", "--state-dir", str(house.folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=pipe, text=True, env=environment()) as watching:
        assert watching.stdout is not None
        shown = (line for line in watching.stdout if "house (replay-service)" in line)
        assert next(shown)
        assert next(shown)
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, "")
    assert "Traceback" not in out


def test_refusals_are_one_line_and_change_nothing(house: House) -> None:
    before = house.state
    big = house.folder / "big.toml"
    big.write_text(CONFIG.replace('"house"', '"big"').replace("num_cpus = 0.5", "num_cpus = 99"), encoding="utf-8")
    taken = house.run("up", str(house.file))
    assert taken.code == 1
    assert re.search(r"^replay-service: name \('house'\) must be free in namespace .*$", taken.err, flags=re.MULTILINE)
    unplaced = house.run("up", str(big))
    assert unplaced.code == 2
    assert "resources.num_cpus (99) must be at most what one node of this Ray has; got 2" in unplaced.err
    others = [house.run(command, "other", "--address", house.ray.address) for command in ("status", "down")]
    for other in others:
        assert other.code == 1
        assert "'other'" in other.err
    far = house.run("up", "small", "--address", "127.0.0.1:9")
    assert far.code == 1
    assert "Ray address ('127.0.0.1:9') must be that of a running Ray; got nobody who listens there" in far.err
    for result in (taken, unplaced, far, *others):
        assert "Traceback" not in result.err + result.out
        assert sum(line.startswith("replay-service: ") for line in result.err.splitlines()) == 1
    assert house.state == before


def test_an_episodic_buffer_is_a_service_like_others(house: House) -> None:
    file = house.folder / "steps.toml"
    file.write_text(STEPS, encoding="utf-8")
    came = house.run("up", str(file))
    assert (came.code, came.err) == (0, f"Creating 'steps' in the Ray at {house.ray.address} …\n")
    assert house.ask("add_step", "steps", house.ray.address) == Result(1, "[0, 0, 0]", "EpisodicClient")
    status = house.run("status", "steps", "--json", "--interval", "0.1")
    (service,) = json.loads(status.out)["services"]
    assert (service["state"], service["size"], service["capacity"]) == ("up", 1, 8)
    assert service["verbs"]["add_steps"]["rows"] == 2
    kept = str(house.folder / "kept")
    saved = house.run("save", kept, "steps")
    assert (saved.code, saved.err) == (0, "")
    assert saved.out.startswith(f"'steps' is saved in {kept}: ")
    assert house.ask("add_step", "steps", house.ray.address).code == 2
    assert house.run("load", kept, "steps") == Result(0, f"'steps' holds 1 records of {kept}.\n", "")
    other = house.run("load", kept, "house")
    assert (other.code, "must be the checkpoint of a buffer; got one of a buffer of steps" in other.err) == (1, True)
    refused = house.run("export", str(house.folder / "steps.npz"), "steps")
    assert (refused.code, "must be a service of records to be exported" in refused.err) == (1, True)
    assert house.run("down", "steps").code == 0


def test_a_service_that_was_killed_is_gone(house: House) -> None:
    came = house.run("up", str(house.file), "--name", "second")
    assert (came.code, came.err) == (0, f"Creating 'second' in the Ray at {house.ray.address} …\n")
    house.ask("kill", "second", house.ray.address)
    status = house.run("status", "second", "--json", "--interval", "0.1")
    assert status.code == 1
    assert json.loads(status.out)["services"][0]["state"] == "gone"
    gone = house.run("down", "second")
    assert (gone.code, gone.out) == (0, "'second' was gone already.\n")
    assert [one.name for one in house.state.services] == ["house"]
    assert is_running(house.ray)


def test_down_stops_the_last_service_and_the_ray_that_up_started(house: House, wait_until: Callable[..., Any]) -> None:
    record = house.ray
    family = family_of(record)
    last = house.run("down")
    assert (last.code, last.out) == (0, f"'house' is down.\nThe Ray at {record.address} is down.\n")
    host, port = record.address.split(":")
    assert not accepts(host, int(port))
    wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family))
    assert not Path(record.temp_dir).exists()
    assert house.state == State()


def test_a_ray_that_died_is_cleared_away(tmp_path: Path) -> None:
    ended = RayRecord("203.0.113.1:6379", os.getpid(), 0.0, str(tmp_path / "ray"), True)
    Path(ended.temp_dir).mkdir()
    inside, elsewhere = ServiceRecord("in", "lab", ended.address), ServiceRecord("out", "lab", "203.0.113.2:6379")
    file = StateFile(tmp_path / "state")
    file.write(State(ended, (inside, elsewhere)))
    stopped = down(file, inside, timeout_s=1.0, report=lambda line: None)
    assert (stopped.gone, stopped.services, stopped.ray) == ((inside,), (), None)
    assert file.read() == State(None, (elsewhere,))
    assert not Path(ended.temp_dir).exists()
