from __future__ import annotations

import io

from rich.console import Console

from clients.trainers.progress import EpochBar


def test_a_bar_counts_and_shows() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    with EpochBar(3, 10, shown=True, console=console) as bar:
        bar.advance(4, loss=0.25)
        assert not bar.full
        bar.advance(8, loss=0.125)
        assert bar.full
    assert "Epoch #3" in shown.getvalue()
    assert "10/10" in shown.getvalue()
    assert "loss=0.125" in shown.getvalue()


def test_nothing_is_shown_elsewhere() -> None:
    shown = io.StringIO()
    for wanted, terminal in ((True, False), (False, True)):
        with EpochBar(1, 2, shown=wanted, console=Console(file=shown, force_terminal=terminal)) as bar:
            bar.advance(2)
            assert bar.full
    assert shown.getvalue() == ""
