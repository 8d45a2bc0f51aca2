"""Files and the numbers that stand for them."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest
import torch

from replay_service.errors import LayoutError
from replay_service.sources import (
    NUMBER_FIELD,
    REFERENCE_CLASS,
    SOURCES,
    SourceTable,
    learn,
    number_keys,
    words_leaf,
    words_of_numbers,
    words_of_rows,
)

REFERENCE = ("tc", 1, REFERENCE_CLASS, (("frame_index", "t"), (NUMBER_FIELD, "t")))


def test_every_table_gives_a_source_the_same_number() -> None:
    one, two = SourceTable(), SourceTable()
    numbers = one.add(["a", "b"])
    assert two.add(["b", "c", "a", "b"]) == [numbers[1], *two.add(["c"]), numbers[0], numbers[1]]
    assert all(0 < number < 1 << 63 for number in numbers)
    assert (one.words(numbers[1]), one.words(5), len(one), len(two)) == ("b", None, 2, 3)
    assert (two.since(0), two.since(2), two.since(3)) == (["b", "c", "a"], ["a"], [])
    assert one.token != two.token


def test_threads_meet_every_source_once() -> None:
    table = SourceTable()
    names = [f"file {n}" for n in range(500)]
    threads = [threading.Thread(target=table.add, args=(names,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(table.since(0)) == sorted(names)


def test_a_forked_process_knows_what_its_parent_knew() -> None:
    number = SOURCES.add(["before the fork"])[0]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child(end: Any) -> None:
        end.send((SOURCES.words(number), SOURCES.token, SOURCES.since(0)))

    process = context.Process(target=child, args=(theirs,))
    process.start()
    words, token, known = ours.recv()
    process.join()
    assert words == "before the fork"
    assert token != SOURCES.token
    assert known == SOURCES.since(0)


def test_references_are_found_in_specs() -> None:
    spec = ("td", 1, (("x", "t"), ("frame", REFERENCE), ("next", ("td", 1, (("frame", REFERENCE),)))))
    assert number_keys(spec) == (("frame", NUMBER_FIELD), ("next", "frame", NUMBER_FIELD))
    assert number_keys("t") == number_keys(("dict", (("x", "t"),))) == ()
    assert number_keys(("tc", 1, "other:Class", ((NUMBER_FIELD, "t"),))) == ()


def test_rows_say_which_sources_they_need() -> None:
    numbers = torch.tensor(SOURCES.add(["one", "two"]))
    keys = [("frame", "frame_index"), ("frame", NUMBER_FIELD)]
    spec = ("td", 1, (("frame", REFERENCE),))
    rows = [torch.zeros(4), numbers[[1, 0, 1, 1]]]
    assert sorted(words_of_rows(spec, keys, rows)) == ["one", "two"]
    assert words_of_rows("t", [()], [numbers]) == []
    assert words_of_numbers(torch.tensor([0, 17]), numbers[:1]) == ["one"]


def test_words_travel_as_a_leaf() -> None:
    leaf = words_leaf(["a new é \udc80 file", "another"])
    assert leaf.dtype == torch.uint8
    learn(leaf)
    assert SOURCES.since(0)[-2:] == ["a new é \udc80 file", "another"]
    assert words_leaf([]).numel() == 0
    learn(words_leaf([]))


@pytest.mark.parametrize("text", [b"{", b'{"a": 1}', b"[1]", b"\xff", b"[" * 10_000])
def test_other_leaves_are_refused(text: bytes) -> None:
    known = len(SOURCES)
    with pytest.raises(LayoutError, match="sources"):
        learn(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    assert len(SOURCES) == known
