from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from deploy.progress import Reading, Screen

READING = Reading(
    elapsed_s=12.3,
    env_steps=4321,
    updates=500,
    episodes=9,
    mean_return=None,
    best_return=None,
    env_steps_per_s=2500.4,
    updates_per_s=310.0,
    buffer_fill=0.25,
    epsilon=0.5,
    loss=None,
)


def test_without_a_terminal_there_are_plain_lines_now_and_then() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=40), 60.0) as screen:
        screen.say("starting")
        screen.show(READING)
        screen.show(READING)
    starting, line = out.getvalue().splitlines()
    assert starting == "starting"
    assert line.split() == [
        "12",
        "s",
        "·",
        "4,321",
        "env",
        "steps",
        "·",
        "return",
        "-",
        "(greedy",
        "best",
        "-)",
        "·",
        "2,500",
        "env",
        "steps/s",
        "·",
        "310",
        "gradient",
        "steps/s",
        "·",
        "buffer",
        "25%",
    ]


def test_on_a_terminal_there_is_a_bar() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=160, force_terminal=True), 60.0) as screen:
        screen.show(replace(READING, mean_return=99.6, best_return=475.0))
    assert "return 100 (greedy best 475)" in out.getvalue()
