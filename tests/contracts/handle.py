"""What every handle keeps to: the same calls on a local buffer and on a handle give the same results, or the same errors.

A test class of a way to reach a buffer inherits `HandleContract` and says how to host one.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from clients import ReplayClient
from clients.futures import Future
from replay_service.errors import ClosedError, EmptyBufferError, LayoutError
from tests.contracts.handle_calls import CASES
from tests.contracts.handle_recipes import CAPACITY, Call, Recipe, outcome, tensordicts
from tests.rows import assert_rows_are_whole, stamped_rows

__all__ = ["HandleContract"]


class HandleContract(ABC):
    """The whole table of calls, against a local buffer of the same recipe and seed."""

    @abstractmethod
    def hosted(self, recipe: Recipe) -> AbstractContextManager[ReplayClient]:
        """A handle on a buffer made by `recipe`, wherever that runs."""

    @pytest.fixture
    def client(self) -> Iterator[ReplayClient]:
        with self.hosted(tensordicts) as client:
            yield client

    @pytest.mark.parametrize(("recipe", "calls"), CASES)
    def test_calls_do_what_they_do_on_a_local_buffer(self, recipe: Recipe, calls: list[Call]) -> None:
        local = recipe()
        with self.hosted(recipe) as client:
            for number, call in enumerate(calls):
                expected, found = outcome(call, local), outcome(call, client)
                assert found == expected, f"call {number}"

    def test_stats(self, client: ReplayClient) -> None:
        client.extend(stamped_rows(3))
        with pytest.raises(LayoutError):
            client.extend(stamped_rows(3).exclude("action"))
        client.sample(2)
        stats = client.stats(timeout=20.0)
        local = tensordicts()
        local.extend(stamped_rows(3))
        assert {name: stats[name] for name in local.stats()} == local.stats()
        verbs = stats["service"]["verbs"]
        assert (verbs["extend"]["calls"], verbs["extend"]["rows"], verbs["extend"]["errors"]) == (1, 3, 1)
        assert (verbs["sample"]["calls"], verbs["sample"]["rows"], verbs["sample"]["errors"]) == (1, 2, 0)
        assert verbs["sample"]["bytes"] > 0
        assert verbs["sample"]["busy_s"] > 0
        assert all(meter["why"] and meter["route"] for meter in verbs.values())

    def test_what_is_returned_and_what_was_given_belong_to_the_caller(self, client: ReplayClient) -> None:
        given = stamped_rows(10)
        client.extend(given)
        for tensor in given.values(True, True):
            tensor.zero_()
        for read in (client.sample, lambda: client[:], lambda: client[3], client.read_all_in_order):
            for tensor in read().values(True, True):
                tensor.zero_()
        assert (client[:] == stamped_rows(10)).all()

    def test_samples_are_contiguous_and_stay_what_they_are(self, client: ReplayClient) -> None:
        client.extend(stamped_rows(10))
        batches = [client.sample(50) for _ in range(10)]
        for batch in batches:
            assert all(tensor.is_contiguous() for tensor in batch.values(True, True))
            assert_rows_are_whole(batch)

    def test_futures_are_answered_in_order(self, client: ReplayClient) -> None:
        waiting: list[Future[Any]] = [client.submit_extend(stamped_rows(1, stamp=number)) for number in range(60)]
        assert [int(future.result(20.0)) for future in waiting] == [number % CAPACITY for number in range(60)]
        assert all(future.done() for future in waiting)
        assert client[:]["action"].tolist() == list(range(50, 60))

    def test_prefetch_goes_on_until_it_is_closed(self, client: ReplayClient) -> None:
        client.extend(stamped_rows(10))
        with client.prefetch(5, depth=3) as batches:
            for _ in range(7):
                batch = next(batches)
                assert batch.shape == (5,)
                assert_rows_are_whole(batch)
        with pytest.raises(StopIteration):
            next(batches)
        assert client.stats()["service"]["verbs"]["sample"]["calls"] == 10  # what was under way was waited for

    def test_prefetch_of_an_empty_buffer_can_be_asked_again(self, client: ReplayClient) -> None:
        batches = client.prefetch()
        for _ in range(2):
            with pytest.raises(EmptyBufferError):
                next(batches)
        client.extend(stamped_rows(10))
        assert next(batches).shape == (4,)
        batches.close()

    @pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"depth": 0}, {"depth": True}, {"batch_size": -1}])
    def test_prefetch_refuses_at_once(self, client: ReplayClient, arguments: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="must be"):
            client.prefetch(**arguments)

    @pytest.mark.parametrize("timeout", [0, -1.0, True, "1", float("nan")])
    def test_a_timeout_is_a_positive_number(self, client: ReplayClient, timeout: Any) -> None:
        with pytest.raises(ValueError, match="timeout"):
            client.stats(timeout=timeout)

    @pytest.mark.parametrize("name", ["shutdown", "start", "client", "clients", "empty"])
    def test_what_only_an_owner_may_do(self, client: ReplayClient, name: str) -> None:
        with pytest.raises(AttributeError, match=f"{name} is the owner's"):
            getattr(client, name)
        assert not hasattr(client, name)

    def test_an_attribute_that_nobody_has(self, client: ReplayClient) -> None:
        with pytest.raises(AttributeError, match="nonsense"):
            client.nonsense  # noqa: B018

    def test_a_closed_handle_refuses_calls_and_changes_nothing(self, client: ReplayClient) -> None:
        assert not client.closed
        client.close()
        client.close()
        assert client.closed
        calls: list[Callable[[], Any]] = [
            lambda: client.extend(stamped_rows(1)),
            client.sample,
            lambda: client.submit_extend(stamped_rows(1)),
            client.submit_sample,
            lambda: client[0],
            lambda: next(client.prefetch()),
            lambda: len(client),
            client.stats,
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="handle must be open"):
                call()

    def test_it_tells_its_address_without_asking(self, client: ReplayClient) -> None:
        assert client.batch_size == client.address.batch_size == 4
        assert client.address.name in repr(client)

    def test_it_pickles_as_an_address(self, client: ReplayClient) -> None:
        client.extend(stamped_rows(5))
        content = pickle.dumps(client)
        assert len(content) < 1000
        assert pickle.loads(content).address == client.address
