"""The policy that threads are started with."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from replay_service.wire.rendezvous import Mailbox, MailboxStore, make_group
from replay_service.wire.yielding import processors, yielding_threads


def policy_of_a_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_only_threads_started_within_yield() -> None:
    with yielding_threads():
        assert policy_of_a_thread() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == policy_of_a_thread() == os.SCHED_OTHER


def test_an_error_within_leaves_this_thread_as_it_was() -> None:
    with pytest.raises(KeyError), yielding_threads():
        raise KeyError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_nothing_changes_where_it_is_not_allowed_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with yielding_threads():
        assert policy_of_a_thread() == os.SCHED_OTHER
    monkeypatch.delattr(os, "sched_getscheduler")
    with yielding_threads():
        pass


def test_a_policy_that_was_chosen_stays() -> None:
    def chosen() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with yielding_threads():
            found.append(os.sched_getscheduler(0))
        found.append(os.sched_getscheduler(0))

    found: list[int] = []
    thread = threading.Thread(target=chosen)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE] * 2


@pytest.mark.parametrize("crowded", [False, True])
def test_the_threads_of_a_pair_do_where_there_are_many(crowded: bool) -> None:
    def policies() -> set[tuple[int, int]]:
        return {(task, os.sched_getscheduler(task)) for task in map(int, os.listdir("/proc/self/task"))}

    mailbox, before = Mailbox(), policies()
    groups: dict[int, Any] = {}

    def made(rank: int) -> None:
        store = MailboxStore(mailbox, 10.0)
        groups[rank] = make_group(store, rank, "127.0.0.1", 10.0, crowded=crowded)

    other = threading.Thread(target=made, args=(1,))
    other.start()
    made(0)
    other.join()
    fresh = policies() - before
    assert [policy for _, policy in fresh].count(os.SCHED_BATCH) == (2 if crowded else 0)
    for group in groups.values():
        group.abort()


def test_processors_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processors() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors() == os.cpu_count()
