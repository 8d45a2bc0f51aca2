from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from deploy.demo import INTERRUPTED, NOT_SOLVED, SOLVED, DemoOptions, run_demo
from deploy.errors import ConfigError
from deploy.interruption import Interruption

EASY = "tests.deploy.easy_env:Easy-v0"
PNG = b"\x89PNG\r\n\x1a\n"


def records_in(runs: Path) -> list[dict[str, Any]]:
    """All that the one run in `runs` has written so far, without a line that is being written."""
    files = list(runs.glob("*/metrics.jsonl"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.usefixtures("ray_session")
def test_demo_ends_when_solved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(env=EASY, runs=tmp_path, minutes=1.5) == SOLVED
    said = capsys.readouterr()
    assert "Solved: " in said.out
    assert "greedy mean return 5.0 over 20 episodes with unseen seeds (needs 5)" in said.out
    assert "Throughput: " in said.out
    assert said.err == ""
    (folder,) = tmp_path.iterdir()
    assert (folder / "learning_curve.png").read_bytes().startswith(PNG)
    assert (folder / "policy.pt").stat().st_size > 0
    records = records_in(tmp_path)
    assert [record["kind"] for record in records if record["kind"] != "progress"] == ["evaluation", "result"]
    result = records[-1]
    assert result["solved"] is True
    assert result["greedy_return"] == 5.0
    # Both directions of the pace: no update without its steps, no steps without their updates.
    assert result["updates"] <= (result["env_steps"] - 1000) / 8
    assert result["env_steps"] <= 1000 + 2048 + result["updates"] * 8 + 2 * 512 + 1
    progress = [record for record in records if record["kind"] == "progress"][-1]
    assert progress["buffer_fill"] == pytest.approx(result["env_steps"] / 100_000, abs=0.02)
    assert progress["mean_return"] == 5.0
    # A Ray that was there before is left running.
    assert ray.is_initialized()


def test_the_same_job_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(env=EASY, runs=tmp_path, minutes=1.5, collectors=0) == SOLVED
    assert "greedy mean return 5.0 over 20 episodes with unseen seeds (needs 5)" in capsys.readouterr().out
    result = records_in(tmp_path)[-1]
    assert result["env_steps"] == 1000 + result["updates"] * 8


@pytest.mark.usefixtures("ray_session")
def test_demo_that_is_out_of_time_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(env=EASY, runs=tmp_path, minutes=1e-6, collectors=1) == NOT_SOLVED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"Not solved: {EASY} needs a greedy mean return of 5 within 1e-06 minutes; none was measured"
    )
    assert records_in(tmp_path)[-1]["solved"] is False


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    command = [sys.executable, "-m", "deploy", "demo", "--runs", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    # A session of its own: the signal goes to the whole group, as a terminal sends it.
    demo = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    family: list[psutil.Process] = []
    try:
        wait_until(lambda: any(r.get("updates", 0) > 0 for r in records_in(tmp_path)), 90.0, what="training")
        family = psutil.Process(demo.pid).children(recursive=True)
        assert family
        os.killpg(demo.pid, signal.SIGINT)
        out, err = demo.communicate(timeout=60.0)
    finally:
        if demo.poll() is None:
            demo.kill()
        for process in family:
            if process.is_running() and demo.returncode != INTERRUPTED:
                process.kill()
    assert demo.returncode == INTERRUPTED
    assert err.splitlines() == ["Interrupted. Everything that was started is stopped."]
    assert "Traceback" not in out
    wait_until(lambda: not psutil.wait_procs(family, timeout=0)[1], 20.0, what="the end of every process")
    assert records_in(tmp_path)[-1]["kind"] == "result"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, r"seed \(-1\) must be at least 0"),
        ({"minutes": 0.0}, r"minutes \(0.0\) must be above 0"),
        ({"collectors": -1}, r"collectors \(-1\) must be at least 0"),
        ({"env": "CratPole-v1"}, r"env \('CratPole-v1'\) must be an id registered with Gymnasium"),
        ({"env": "Pendulum-v1"}, r"env \('Pendulum-v1'\) must have a reward threshold"),
        ({"env": "MountainCarContinuous-v0"}, r"env \('MountainCarContinuous-v0'\) must suit the policy; action_space"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_demo(**{"runs": tmp_path, **options})
    assert list(tmp_path.iterdir()) == []


def test_environments_of_gymnasium_have_a_threshold() -> None:
    assert DemoOptions().threshold() == 475.0
    assert DemoOptions(env="Acrobot-v1").threshold() == -100.0


def test_the_second_signal_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
