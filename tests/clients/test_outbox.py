from __future__ import annotations

from typing import Any

import pytest

from clients.outbox import Outbox


class Pending:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_answers_land_in_order_and_most_wait() -> None:
    landed: list[tuple[Any, Any]] = []
    outbox = Outbox(
        None, lambda rows, plus=0: Pending(rows + plus), 2, lambda answer, note: landed.append((answer, note))
    )
    for number in range(4):
        outbox.send(f"note {number}", number, plus=10)
    assert landed == [(10, "note 0"), (11, "note 1")]
    outbox.drain()
    assert landed[2:] == [(12, "note 2"), (13, "note 3")]


def test_a_push_that_fails_is_an_error_of_a_later_call() -> None:
    landed: list[Any] = []
    outbox = Outbox(None, Pending, 2, lambda answer, note: landed.append(answer))
    outbox.send(None, ValueError("no"))
    outbox.send(None, 1)
    with pytest.raises(ValueError, match="no"):
        outbox.send(None, 2)
    outbox.drain()
    assert landed == [1]


def test_at_once_where_the_buffer_cannot_wait() -> None:
    landed: list[Any] = []
    Outbox(lambda rows: rows * 2, None, 2, lambda answer, note: landed.append((answer, note))).send("note", 3)
    assert landed == [(6, "note")]
